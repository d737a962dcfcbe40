# Each tests/cuda/test_*.c twice: as test_*_emulated, which needs no toolkit and no device; and, where
# the kernels were compiled, as test_*_device, which skips itself where there is no device.
#
# gridpipe_emulated is the library once more, with CUDA as tests/cuda_emulation has it: .cu files are
# compiled as C++, and the GPUs that pipes find are emulated, too.

file(GLOB cuda_test_sources CONFIGURE_DEPENDS cuda/test_*.c)
file(GLOB cuda_helper_sources CONFIGURE_DEPENDS cuda/*.c)
list(REMOVE_ITEM cuda_helper_sources ${cuda_test_sources})
list(APPEND cuda_helper_sources ${helper_sources})
file(GLOB emulation_sources CONFIGURE_DEPENDS cuda_emulation/*.cpp cuda_emulation/*.c)
set(emulation_includes ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulation/include)

# C++ as the C files: sanitizers, too.
if(NOT CMAKE_CXX_FLAGS)
  set(CMAKE_CXX_FLAGS ${CMAKE_C_FLAGS})
  set(CMAKE_CXX_FLAGS_DEBUG ${CMAKE_C_FLAGS_DEBUG})
endif()
enable_language(CXX)

# with_cuda(TARGET INCLUDES): compiled with CUDA's headers, or those of the emulation. The fields
# that the cases of these tests leave out are the usual ones.
function(with_cuda target includes)
  target_compile_definitions(${target} PRIVATE GPP__WITH_CUDA
    GPP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_include_directories(${target} SYSTEM BEFORE PRIVATE ${includes})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(${target} PRIVATE -ffp-contract=off -Wno-missing-field-initializers)
  set_target_properties(${target} PROPERTIES C_STANDARD 11 C_EXTENSIONS ON)
  target_link_libraries(${target} PRIVATE gridpipe_warnings)
endfunction()

# --- on the emulation ---------------------------------------------------------------------------

# Compiled once more: what names CUDA's functions, and only that where the library is without CUDA.
# The rest are the library's own objects.
set(emulated_sources ${gridpipe_sources})
list(REMOVE_ITEM emulated_sources ${PROJECT_SOURCE_DIR}/graph/recipe/machine_cuda.c
  ${PROJECT_SOURCE_DIR}/graph/run/runtime_cuda.c)
if(NOT gridpipe_cuda_used)
  set(names_cuda "/codelets/(ops|losses|optimizers|user|bare_device)|/graph/data/host_memory[.]c")
  set(not_emulated "${names_cuda}|/(machine|runtime)_cuda[.]c")
  list(FILTER emulated_sources INCLUDE REGEX "${names_cuda}")
  set(emulated_objects "$<FILTER:$<TARGET_OBJECTS:gridpipe_objects>,EXCLUDE,${not_emulated}>")
endif()
set(emulated_needs ${gridpipe_needs})
list(FILTER emulated_needs EXCLUDE REGEX "^CUD")
set_source_files_properties(${gridpipe_cuda_sources} PROPERTIES LANGUAGE CXX)

add_library(gridpipe_emulated STATIC ${emulated_sources} ${gridpipe_cuda_sources}
  ${emulation_sources} ${emulated_objects})
with_cuda(gridpipe_emulated ${emulation_includes})
# Hidden: a StarPU with CUDA is to find CUDA's functions, not the emulation's.
set_target_properties(gridpipe_emulated PROPERTIES
  CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
  C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden)
target_include_directories(gridpipe_emulated PRIVATE cuda_emulation)
target_compile_options(gridpipe_emulated PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -O1 $<$<BOOL:${GRIDPIPE_WERROR}>:-Werror>>)
# Most of the time of tests goes there.
set_source_files_properties(${emulation_sources} PROPERTIES COMPILE_OPTIONS -O2)
target_link_libraries(gridpipe_emulated PRIVATE ${emulated_needs})
if(CMAKE_C_FLAGS MATCHES "-fsanitize=[a-z,]*address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Fences between shared memory, which has a section of its own.
  target_compile_options(gridpipe_emulated PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize-sections=gpp_shared>)
endif()

add_test_helpers(test_helpers_emulated ${cuda_helper_sources})
with_cuda(test_helpers_emulated ${emulation_includes})
foreach(source IN LISTS cuda_test_sources)
  get_filename_component(name ${source} NAME_WE)
  add_gridpipe_test(${name}_emulated gridpipe_emulated test_helpers_emulated ${source})
  with_cuda(${name}_emulated ${emulation_includes})
endforeach()

# What was written for cores, too: pipes without a list of devices find emulated GPUs. The longest
# once only.
set(core_tests vectors trace learning order resume skips)
if(NOT CMAKE_C_FLAGS MATCHES "-fsanitize")
  list(APPEND core_tests submit)
endif()
foreach(name IN LISTS core_tests)
  set(source test_${name}.c)
  if(NOT name STREQUAL "vectors") # which asks for the way to compute when there is CUDA
    object_of(source test_${name} test_${name})
  endif()
  add_gridpipe_test(test_${name}_emulated gridpipe_emulated test_helpers_emulated ${source})
  with_cuda(test_${name}_emulated ${emulation_includes})
endforeach()

# --- watched for races ---------------------------------------------------------------------------

# Kernels once more, with a call in front of every access: tests/cuda_emulation/races.cpp. Nothing is
# linked with a sanitizer, and no build with one needs these.
if(NOT CMAKE_C_FLAGS MATCHES "-fsanitize")
  file(GLOB emulation_cpp_sources CONFIGURE_DEPENDS cuda_emulation/*.cpp)
  add_library(watched_kernels OBJECT ${gridpipe_cuda_sources})
  add_library(watching_emulation OBJECT ${emulation_cpp_sources})
  foreach(target watched_kernels watching_emulation)
    with_cuda(${target} ${emulation_includes})
    set_target_properties(${target} PROPERTIES
      CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
    target_compile_definitions(${target} PRIVATE GPP_EMULATION_RACES)
    target_compile_options(${target} PRIVATE -O1)
  endforeach()
  target_compile_options(watched_kernels PRIVATE -fsanitize=thread)
  foreach(name common losses operators ops optimizers products)
    object_of(object test_cuda_${name}_emulated test_cuda_${name})
    add_gridpipe_test(test_cuda_${name}_watched gridpipe_emulated test_helpers_emulated ${object}
      $<TARGET_OBJECTS:watched_kernels> $<TARGET_OBJECTS:watching_emulation>)
    with_cuda(test_cuda_${name}_watched ${emulation_includes})
    target_link_libraries(test_cuda_${name}_watched PRIVATE ${CMAKE_DL_LIBS})
  endforeach()
endif()

# --- on a device --------------------------------------------------------------------------------

if(TARGET gridpipe_cuda_kernels)
  # A library without CUDA has operators without CUDA's functions: those that have them, and the
  # functions, come before the library's.
  if(NOT gridpipe_cuda_used)
    file(GLOB cuda_codelet_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/codelets/ops/*.c
      ${PROJECT_SOURCE_DIR}/codelets/losses/*.c ${PROJECT_SOURCE_DIR}/codelets/optimizers/*.c)
    add_library(cuda_codelets OBJECT ${cuda_codelet_sources})
    with_cuda(cuda_codelets "${CUDAToolkit_INCLUDE_DIRS};${CUDNN_INCLUDE_DIR}")
    target_link_libraries(cuda_codelets PRIVATE PkgConfig::STARPU OneDNN::OneDNN)
    set(cuda_objects $<TARGET_OBJECTS:cuda_codelets> $<TARGET_OBJECTS:gridpipe_cuda_kernels>)
  endif()
  add_test_helpers(test_helpers_device ${cuda_helper_sources})
  with_cuda(test_helpers_device "${CUDAToolkit_INCLUDE_DIRS};${CUDNN_INCLUDE_DIR}")
  foreach(source IN LISTS cuda_test_sources)
    get_filename_component(name ${source} NAME_WE)
    add_gridpipe_test(${name}_device gridpipe_static test_helpers_device ${source} ${cuda_objects})
    with_cuda(${name}_device "${CUDAToolkit_INCLUDE_DIRS};${CUDNN_INCLUDE_DIR}")
    target_link_libraries(${name}_device PRIVATE CUDA::cudart CUDA::cublas CUDNN::cudnn stdc++)
    set_target_properties(${name}_device PROPERTIES LINKER_LANGUAGE C)
  endforeach()
endif()
