/* One launch of RMSNorm's kernel on the double, and its result against plain loops: exit code 0 where they agree, 3
 * where not. Built twice: as it is, and with __syncthreads taken away (CUDA_DOUBLE_NO_BARRIERS). "norm beyond": the
 * weights are an element too short. */
#include <cstdio>
#include <vector>

#include "ops/rmsnorm.cu"

int main(int argc, char **argv) {
    const int rows = 3, width = 257;
    const bool beyond = argc > 1 && strcmp(argv[1], "beyond") == 0;
    const float eps = 1e-5f;
    std::vector<float> a(rows * width), y(rows * width), inverse(rows);
    float *w = new float[width - beyond];
    for (int i = 0; i < rows * width; i++) a[i] = (float)(i * 7 % 23 - 11) / 8;
    for (int i = 0; i < width - beyond; i++) w[i] = 1 + (float)(i % 5);
    KERNEL_LAUNCH((norm<float, 1>), rows, THREADS, width * sizeof(float), nullptr, a.data(), nullptr, w, nullptr,
                  y.data(), inverse.data(), width, 1.0f / width, eps);
    if (cudaDeviceSynchronize() != cudaSuccess) return 4;
    int wrong = 0;
    for (int t = 0; t < rows; t++) {
        double sum = 0;
        for (int i = 0; i < width; i++) sum += (double)a[t * width + i] * a[t * width + i];
        const double scale = 1 / sqrt(sum / width + eps);
        for (int i = 0; i < width - beyond; i++) {
            const double want = a[t * width + i] * scale * w[i];
            wrong += !(fabs(y[t * width + i] - want) <= 1e-5 * (1 + fabs(want)));
        }
    }
    delete[] w;
    printf("%d of %d wrong\n", wrong, rows * width);
    return wrong ? 3 : 0;
}
