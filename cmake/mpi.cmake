# libgridpipe_mpi: ranks that are MPI processes, an optional library beside the others.
#
#   GRIDPIPE_MPI=AUTO   built where an MPI for C is found
#   GRIDPIPE_MPI=ON     MPI missing is an error
#
# Makes gridpipe_mpi and gridpipe_mpi_static (gridpipe::mpi and gridpipe::mpi_static) if it is built.

set(GRIDPIPE_MPI AUTO CACHE STRING "libgridpipe_mpi: AUTO (where MPI is found), ON or OFF")
set_property(CACHE GRIDPIPE_MPI PROPERTY STRINGS AUTO ON OFF)
if(NOT GRIDPIPE_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GRIDPIPE_MPI is '${GRIDPIPE_MPI}', expected AUTO, ON or OFF")
endif()

set(gridpipe_mpi_missing "")
if(NOT GRIDPIPE_MPI)
  set(gridpipe_mpi_missing "GRIDPIPE_MPI is OFF")
else()
  find_package(MPI 3.0 QUIET COMPONENTS C)
  if(NOT MPI_C_FOUND)
    set(gridpipe_mpi_missing "no MPI for C is found")
  endif()
endif()
set(gridpipe_mpi_missing "${gridpipe_mpi_missing}" CACHE INTERNAL "for tests/run.sh")

if(gridpipe_mpi_missing)
  if(GRIDPIPE_MPI STREQUAL "ON")
    message(FATAL_ERROR "GRIDPIPE_MPI is ON, but ${gridpipe_mpi_missing}")
  endif()
  message(STATUS "gridpipe: no libgridpipe_mpi: ${gridpipe_mpi_missing}")
  return()
endif()
message(STATUS "gridpipe: libgridpipe_mpi with MPI ${MPI_C_VERSION}")

file(GLOB gridpipe_mpi_sources CONFIGURE_DEPENDS mpi/*.c)
set(gridpipe_mpi_header include/gridpipe/mpi.h)
set_source_files_properties(${gridpipe_mpi_header} PROPERTIES LANGUAGE C)

add_library(gridpipe_mpi_objects OBJECT ${gridpipe_mpi_sources})
set_target_properties(gridpipe_mpi_objects PROPERTIES
  C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS ON
  C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
target_include_directories(gridpipe_mpi_objects PRIVATE ${PROJECT_SOURCE_DIR} include)
target_include_directories(gridpipe_mpi_objects SYSTEM PRIVATE ${STARPU_INCLUDE_DIRS})
target_link_libraries(gridpipe_mpi_objects PRIVATE gridpipe_warnings MPI::MPI_C Threads::Threads)

add_library(gridpipe_mpi SHARED)
add_library(gridpipe_mpi_static STATIC)
add_library(gridpipe::mpi ALIAS gridpipe_mpi)
add_library(gridpipe::mpi_static ALIAS gridpipe_mpi_static)
target_link_libraries(gridpipe_mpi PUBLIC gridpipe MPI::MPI_C PRIVATE PkgConfig::STARPU)
target_link_libraries(gridpipe_mpi_static PUBLIC gridpipe_static MPI::MPI_C)
foreach(library IN ITEMS gridpipe_mpi gridpipe_mpi_static)
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:gridpipe_mpi_objects>
    PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${gridpipe_mpi_header})
  target_link_libraries(${library} PRIVATE Threads::Threads m)
  set_target_properties(${library} PROPERTIES LINKER_LANGUAGE C OUTPUT_NAME gridpipe_mpi)
endforeach()
set_target_properties(gridpipe_mpi PROPERTIES EXPORT_NAME mpi
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  VERIFY_INTERFACE_HEADER_SETS ON)
set_target_properties(gridpipe_mpi_static PROPERTIES EXPORT_NAME mpi_static)

set(gridpipe_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gridpipe)
install(TARGETS gridpipe_mpi EXPORT gridpipeMpiTargets FILE_SET HEADERS)
install(TARGETS gridpipe_mpi_static EXPORT gridpipeMpiStaticTargets FILE_SET HEADERS)
install(EXPORT gridpipeMpiTargets NAMESPACE gridpipe:: DESTINATION ${gridpipe_package_dir})
install(EXPORT gridpipeMpiStaticTargets NAMESPACE gridpipe:: DESTINATION ${gridpipe_package_dir})

# For gridpipe_mpi.pc.
set(gridpipe_mpi_cflags ${MPI_C_INCLUDE_DIRS})
list(TRANSFORM gridpipe_mpi_cflags PREPEND -I)
list(JOIN gridpipe_mpi_cflags " " gridpipe_mpi_cflags)
list(JOIN MPI_C_LIBRARIES " " gridpipe_mpi_libs)
