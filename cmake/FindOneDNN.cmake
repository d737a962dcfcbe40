# Finds oneDNN by its library and header: OneDNN::OneDNN. (The package's own configuration file
# wants OpenCL's development files, which nothing here needs.)

find_library(ONEDNN_LIBRARY dnnl)
find_path(ONEDNN_INCLUDE_DIR dnnl.h)
mark_as_advanced(ONEDNN_LIBRARY ONEDNN_INCLUDE_DIR)

if(ONEDNN_INCLUDE_DIR)
  find_file(ONEDNN_VERSION_HEADER NAMES oneapi/dnnl/dnnl_version.h dnnl_version.h
    HINTS ${ONEDNN_INCLUDE_DIR} NO_DEFAULT_PATH NO_CACHE)
  if(ONEDNN_VERSION_HEADER)
    file(STRINGS ${ONEDNN_VERSION_HEADER} onednn_lines REGEX "DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" onednn_numbers "${onednn_lines}")
    list(JOIN onednn_numbers "." OneDNN_VERSION)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN
  REQUIRED_VARS ONEDNN_LIBRARY ONEDNN_INCLUDE_DIR VERSION_VAR OneDNN_VERSION)

if(OneDNN_FOUND AND NOT TARGET OneDNN::OneDNN)
  add_library(OneDNN::OneDNN UNKNOWN IMPORTED)
  set_target_properties(OneDNN::OneDNN PROPERTIES
    IMPORTED_LOCATION ${ONEDNN_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${ONEDNN_INCLUDE_DIR})
endif()
