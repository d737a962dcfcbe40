# CUDA kernels: *.cu files beside the C files they belong to, compiled when a toolkit is there.
# Nothing depends on them being there: a build without CUDA has the CPU kernels alone.

include(CheckLanguage)
if(NOT gridpipe_cuda_sources)
  message(STATUS "gridpipe: no CUDA sources")
else()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    target_sources(gridpipe_objects PRIVATE ${gridpipe_cuda_sources})
    target_include_directories(gridpipe_objects SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    list(APPEND gridpipe_needs CUDA::cudart CUDA::cublas)
    message(STATUS "gridpipe: CUDA ${CMAKE_CUDA_COMPILER_VERSION}")
  else()
    message(STATUS "gridpipe: no CUDA toolkit, CUDA sources are left out")
  endif()
endif()
