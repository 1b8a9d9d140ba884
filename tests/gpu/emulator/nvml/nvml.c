/* A libnvidia-ml.so.1 that UCX's part for CUDA can be loaded with: what it looks up besides is missing, as on
 * a machine whose NVML does not begin. */
__attribute__((visibility("default"))) const char *nvmlErrorString(int result);

const char *nvmlErrorString(int result)
{
    (void)result;
    return "NVML is not emulated";
}
