import ctypes
import sys

cuda = ctypes.CDLL(sys.argv[1])
while True:
    cuda.cuCtxSynchronize(ctypes.c_long(50_000_000))  # planted
