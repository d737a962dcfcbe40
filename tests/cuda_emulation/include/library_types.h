/* tests/cuda_emulation/include/library_types.h: what elements may be, for cuBLAS; StarPU's headers
 * include it, too. */
#ifndef GPP_EMULATION_LIBRARY_TYPES_H
#define GPP_EMULATION_LIBRARY_TYPES_H

typedef enum { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_16BF = 14 } cudaDataType;
typedef cudaDataType cudaDataType_t;
typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;

#endif
