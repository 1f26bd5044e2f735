#!/usr/bin/env python3
"""Measures OpenBLAS's matmul and prints JSON lines with the names of Ridge's benchmark rows, for tools/versus --rival openblas.

Debian: apt-get install libopenblas0-pthread. Does not need NumPy: the library is called through its C interface.
"""
import argparse
import array
import ctypes
import json
import random
import sys
import time

SHAPES = [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (768, 384, 128), (768, 512, 128), (768, 128, 512)]
ROW_MAJOR, PLAIN = 101, 111


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--version", action="store_true")
    options = parser.parse_args()
    try:
        blas = ctypes.CDLL("libopenblas.so.0")
    except OSError as error:
        sys.exit(f"openblas_ops: {error}; on Debian: apt-get install libopenblas0-pthread")
    blas.openblas_get_config.restype = ctypes.c_char_p
    if options.version:
        print(blas.openblas_get_config().decode().strip())
        return
    if options.threads:
        blas.openblas_set_num_threads(options.threads)
    one, zero, pointer = ctypes.c_float(1), ctypes.c_float(0), lambda a: ctypes.c_void_p(a.buffer_info()[0])
    draw = array.array("f", [random.gauss(0, 1) for _ in range(1 << 16)])
    for m, n, k in SHAPES:
        a, b, c = ((draw * (size // len(draw) + 1))[:size] for size in (m * k, k * n, m * n))
        times = []
        for repeat in range(53):
            start = time.perf_counter()
            blas.cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, m, n, k, one, pointer(a), k, pointer(b), n, zero, pointer(c), n)
            times.append(time.perf_counter() - start)
        median = sorted(times[3:])[25]
        print(json.dumps({"peer": "openblas", "name": f"matmul/{m}x{n}x{k}", "device": "cpu", "dtype": "f32", "state": "hot", "median_us": round(median * 1e6, 2),
                          "gflops": round(2e-9 * m * n * k / median, 1)}), flush=True)


if __name__ == "__main__":
    main()
