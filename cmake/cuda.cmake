# CUDA kernels: *.cu files beside the C files they belong to. There are two separate questions:
#
#   Are they compiled?         With GRIDPIPE_CUDA=AUTO: if there are a toolkit and cuDNN, and the
#                              library or the tests use them. With ON: anything missing is an error.
#   Does the library use them? Only if StarPU itself was built with CUDA. Otherwise pipes run on CPU
#                              cores, and the library is not linked with CUDA, cuBLAS and cuDNN.
#
# Sets gridpipe_cuda_used, and makes gridpipe_cuda_kernels, an OBJECT library, if they are compiled.

set(GRIDPIPE_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (where a toolkit is found), ON or OFF")
set_property(CACHE GRIDPIPE_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT GRIDPIPE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "GRIDPIPE_CUDA is '${GRIDPIPE_CUDA}', expected AUTO, ON or OFF")
endif()

# --- what there is ------------------------------------------------------------------------------

include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_INCLUDES ${STARPU_INCLUDE_DIRS})
check_c_source_compiles("#include <starpu_config.h>
#ifndef STARPU_USE_CUDA
#error StarPU has no CUDA
#endif
int main(void) { return 0; }" gridpipe_starpu_has_cuda)
unset(CMAKE_REQUIRED_INCLUDES)

# Says why the kernels are not compiled; "" if they are.
set(gridpipe_cuda_missing "")
set(gridpipe_cuda_used FALSE)
if(NOT GRIDPIPE_CUDA)
  set(gridpipe_cuda_missing "GRIDPIPE_CUDA is OFF")
elseif(GRIDPIPE_CUDA STREQUAL "AUTO" AND NOT gridpipe_starpu_has_cuda AND NOT GRIDPIPE_TESTS)
  set(gridpipe_cuda_missing "StarPU is built without CUDA")
elseif(GRIDPIPE_CUDA STREQUAL "AUTO" AND CMAKE_C_FLAGS MATCHES "-fsanitize")
  set(gridpipe_cuda_missing "this is a build with sanitizers")
else()
  # nvcc is often installed but not in the PATH.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(gridpipe_nvcc nvcc PATHS ENV CUDA_PATH ENV CUDA_HOME /usr/local/cuda
      PATH_SUFFIXES bin)
    mark_as_advanced(gridpipe_nvcc)
    if(gridpipe_nvcc)
      set(CMAKE_CUDA_COMPILER ${gridpipe_nvcc})
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90) # A100, and H100 with code that newer ones translate
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared) # StarPU's and the libraries' own
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    find_package(CUDNN 9 QUIET)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    set(gridpipe_cuda_missing "no CUDA compiler (nvcc) is found")
  elseif(NOT TARGET CUDA::cudart OR NOT TARGET CUDA::cublas)
    set(gridpipe_cuda_missing "the CUDA runtime or cuBLAS is not found")
  elseif(NOT CUDNN_FOUND)
    set(gridpipe_cuda_missing "cuDNN 9 or newer is not found")
  endif()
endif()

# --- the kernels --------------------------------------------------------------------------------

if(gridpipe_cuda_missing)
  if(GRIDPIPE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GRIDPIPE_CUDA is ON, but ${gridpipe_cuda_missing}")
  endif()
  message(STATUS "gridpipe: no CUDA kernels: ${gridpipe_cuda_missing}")
else()
  # No multiplication is fused with an addition, as in the C files: see CMakeLists.txt.
  add_library(gridpipe_cuda_kernels OBJECT ${gridpipe_cuda_sources})
  set_target_properties(gridpipe_cuda_kernels PROPERTIES
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
    CUDA_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(gridpipe_cuda_kernels PRIVATE GPP__WITH_CUDA)
  target_compile_options(gridpipe_cuda_kernels PRIVATE --fmad=false
    -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-fno-exceptions
    $<$<BOOL:${GRIDPIPE_WERROR}>:--Werror=all-warnings>)
  target_include_directories(gridpipe_cuda_kernels PRIVATE ${PROJECT_SOURCE_DIR} include)
  target_include_directories(gridpipe_cuda_kernels SYSTEM PRIVATE
    ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR})
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " gridpipe_cuda_architectures)
  message(STATUS "gridpipe: CUDA ${CMAKE_CUDA_COMPILER_VERSION} and cuDNN ${CUDNN_VERSION}, "
    "for ${gridpipe_cuda_architectures}")

  if(gridpipe_starpu_has_cuda)
    set(gridpipe_cuda_used TRUE)
    target_compile_definitions(gridpipe_objects PRIVATE GPP__WITH_CUDA GPP__STARPU_CUDA=1)
    target_include_directories(gridpipe_objects SYSTEM PRIVATE
      ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR})
    # stdc++: what nvcc generates for the host has guarded static variables.
    list(APPEND gridpipe_needs CUDA::cudart CUDA::cublas CUDNN::cudnn stdc++)
    message(STATUS "gridpipe: StarPU ${STARPU_VERSION} has CUDA: pipes run on GPUs, too")
    # StarPU passes streams of its CUDA runtime to ours. These are two runtimes if versions differ.
    execute_process(COMMAND ${CMAKE_READELF} -d ${STARPU_LINK_LIBRARIES}
      OUTPUT_VARIABLE gridpipe_starpu_links ERROR_QUIET)
    if(gridpipe_starpu_links MATCHES "libcudart\\.so\\.([0-9]+)"
        AND NOT CMAKE_MATCH_1 EQUAL CUDAToolkit_VERSION_MAJOR)
      message(WARNING "gridpipe: StarPU ${STARPU_VERSION} was built with CUDA ${CMAKE_MATCH_1}, and "
        "this toolkit is CUDA ${CUDAToolkit_VERSION}. Choose a toolkit of StarPU's version with "
        "-DCMAKE_CUDA_COMPILER=.../bin/nvcc and -DCUDAToolkit_ROOT=...")
    endif()
  else()
    message(STATUS "gridpipe: StarPU ${STARPU_VERSION} is built without CUDA: kernels are compiled, "
      "pipes run on CPU cores")
  endif()
endif()
set(gridpipe_cuda_missing "${gridpipe_cuda_missing}" CACHE INTERNAL "for tests/run.sh")
