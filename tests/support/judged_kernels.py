"""A right kernel of causal attention with an online softmax, and mistakes to plant in it."""

from __future__ import annotations

RIGHT = '''
import nki
import nki.isa as nisa
import nki.language as nl

T = 128


@nki.jit
def attention(q, k, v):
    """softmax(q.T @ k * d ** -0.5, causal) @ v; q, k [d, s], v [s, d]."""
    d, s = q.shape
    tiles = s // T
    out = nl.ndarray((s, d), dtype=q.dtype, buffer=nl.shared_hbm)
    qs = nl.ndarray((d, s), dtype=q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=qs, src=q)
    ks = nl.ndarray((d, s), dtype=k.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=ks, src=k)
    vs = nl.ndarray((T, tiles, d), dtype=v.dtype, buffer=nl.sbuf)
    for t in range(tiles):
        nisa.dma_copy(dst=vs[:, t, :], src=v[t * T : (t + 1) * T, :])
    for i in range(tiles):
        top = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=top, value=-3.0e38)
        total = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        acc = nl.ndarray((T, d), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=acc, value=0.0)
        for j in range(i + 1):
            product = nl.ndarray((T, T), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=product, stationary=qs[:, i * T : (i + 1) * T], moving=ks[:, j * T : (j + 1) * T])
            scores = nl.ndarray((T, T), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=scores, data=product, op0=nl.multiply, operand0=d**-0.5)
            if j == i:
                nisa.affine_select(
                    dst=scores, pattern=[[-1, T]], channel_multiplier=1, on_true_tile=scores, on_false_value=-3.0e38,
                    cmp_op=nl.greater_equal, offset=0,
                )
            here = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=here, op=nl.maximum, data=scores, axis=1)
            new = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=new, data1=top, data2=here, op=nl.maximum)
            negative = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=negative, data=new, op0=nl.multiply, operand0=-1.0)
            correction = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=correction, op=nl.exp, data=top, bias=negative)
            nisa.tensor_copy(dst=top, src=new)
            probs = nl.ndarray((T, T), dtype=nl.bfloat16, buffer=nl.sbuf)
            sums = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation_reduce(dst=probs, op=nl.exp, data=scores, bias=negative, reduce_op=nl.add, reduce_res=sums)
            nisa.scalar_tensor_tensor(dst=total, data=total, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=sums)
            turned = nl.ndarray((T, T), dtype=nl.bfloat16, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=probs)
            probs_t = nl.ndarray((T, T), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_copy(dst=probs_t, src=turned)
            part = nl.ndarray((T, d), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=part, stationary=probs_t, moving=vs[:, j, :])
            nisa.scalar_tensor_tensor(dst=acc, data=acc, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=part)
        inverse = nl.ndarray((T, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        done = nl.ndarray((T, d), dtype=q.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=done, data=acc, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[i * T : (i + 1) * T, :], src=done)
    return out
'''

SOFTMAX_OF_ROWS = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + 128, :])
        top = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        first = top if start == 0 else first
        total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[start : start + 128, :], src=tile)
    return out
"""

OPTIONS = {"layout": "q=ds,k=ds", "check": (256,), "at": (256,), "seed": 7}

_WHOLE = "for j in range(i + 1):"
_MASK = "if j == i:"

WRONG = {
    # name: (text, its replacement, words of the message)
    "scale missing": ("operand0=d**-0.5", "operand0=1.0", "scale is missing"),
    "scale twice": ("operand0=d**-0.5", "operand0=1.0 / d", "scale is applied twice"),
    "base 2": ("op=nl.exp, data=scores, bias", "op=nl.exp, scale=0.6931471805599453, data=scores, bias", ""),
    "scores in bf16": (
        "scores = nl.ndarray((T, T), dtype=nl.float32",
        "scores = nl.ndarray((T, T), dtype=nl.bfloat16",
        "scores are rounded",
    ),
    "probabilities in fp8": (
        "probs = nl.ndarray((T, T), dtype=nl.bfloat16",
        "probs = nl.ndarray((T, T), dtype=nl.float8_e4m3",
        "",
    ),
    "V transposed": (
        "nisa.dma_copy(dst=vs[:, t, :], src=v[t * T : (t + 1) * T, :])",
        "nisa.dma_transpose(dst=vs[:, t, :], src=v[t * T : (t + 1) * T, :])",
        "V's tiles of 128 x 128 are transposed",
    ),
    "only the first tile of V is loaded": ("src=v[t * T : (t + 1) * T, :]", "src=v[0:T, :]", "every tile of V is the first"),
    "accumulates itself": ("op1=nl.add, operand1=part)", "op1=nl.add, operand1=acc)", "zero everywhere"),
    "accumulates twice": (
        "moving=vs[:, j, :])\n",
        "moving=vs[:, j, :])\n            nisa.nc_matmul(dst=part, stationary=probs_t, moving=vs[:, j, :])\n",
        "2 times the reference",
    ),
    "SBUF overflows": (
        "tiles = s // T",
        "tiles = s // T\n    big = nl.ndarray((T, 300000), nl.uint8, buffer=nl.sbuf)\n    nisa.memset(dst=big, value=0)",
        "SBUF overflow",
    ),
    "strict mask": ("offset=0,", "offset=-1,", "mask is strict"),
    "mask one ahead": ("offset=0,", "offset=1,", "one ahead"),
    "no mask in a tile": (_MASK, "if j == i + 1:", "whole tile of 128"),
    "no mask": ((_WHOLE, "for j in range(tiles):"), (_MASK, "if False:"), "no mask"),
    "mask transposed": ("pattern=[[-1, T]], channel_multiplier=1", "pattern=[[1, T]], channel_multiplier=-1", ""),
    "not divided": ("data=acc, op0=nl.multiply, operand0=inverse", "data=acc, op0=nl.multiply, operand0=1.0", "divided"),
    "P not transposed": ("stationary=probs_t", "stationary=probs", "not transposed"),
    "V reversed": ("moving=vs[:, j, :]", "moving=vs[:, tiles - 1 - j, :]", "reverse"),
    "first V tile only": ("moving=vs[:, j, :]", "moving=vs[:, 0, :]", "first one"),
    "first key tile missing": (_WHOLE, "for j in range(1 if i else 0, i + 1):", "first block of 128 keys is missing"),
    "correction forgotten in sums": (
        "data=total, op0=nl.multiply, operand0=correction",
        "data=total, op0=nl.multiply, operand0=1.0",
        "sums are not corrected",
    ),
    "correction forgotten in acc": (
        "data=acc, op0=nl.multiply, operand0=correction",
        "data=acc, op0=nl.multiply, operand0=1.0",
        "output is not corrected",
    ),
    "maximum not subtracted": (
        "data=top, bias=negative",
        "data=top, scale=0.0",
        "right on",
        "data=new, op0=nl.multiply, operand0=-1.0",
        "data=new, op0=nl.multiply, operand0=0.0",
    ),
    "hidden scores are a low number": ("on_false_value=-3.0e38", "on_false_value=-10.0", "are -10 instead of the lowest"),
    "maximum of half of each tile": ("data=scores, axis=1", "data=scores[:, 0:64], axis=1", "right on"),
    "V in fp8": (
        "        nisa.dma_copy(dst=vs[:, t, :], src=v[t * T : (t + 1) * T, :])\n",
        "        v8 = nl.ndarray((T, d), dtype=nl.float8_e4m3, buffer=nl.sbuf)\n"
        "        nisa.dma_copy(dst=v8, src=v[t * T : (t + 1) * T, :])\n        nisa.tensor_copy(dst=vs[:, t, :], src=v8)\n",
        "8-bit type",
    ),
    "output never stored": (
        "        nisa.dma_copy(dst=out[i * T : (i + 1) * T, :], src=done)\n",
        "",
        "no instruction writes out",
    ),
    "maximum of the first tile": (
        "nisa.tensor_tensor(dst=new, data1=top, data2=here, op=nl.maximum)",
        "nisa.tensor_copy(dst=new, src=top if j else here)",
        "right on",
    ),
    "V read after reuse": ("moving=vs[:, j, :]", "moving=vs[:, min(j + 1, tiles - 1), :]", "last one"),
    "sums in bf16": ("total = nl.ndarray((T, 1), dtype=nl.float32", "total = nl.ndarray((T, 1), dtype=nl.bfloat16", "16-bit"),
    "accumulators in bf16": (
        "acc = nl.ndarray((T, d), dtype=nl.float32",
        "acc = nl.ndarray((T, d), dtype=nl.bfloat16",
        "16-bit",
    ),
    "running sum never written": ("        nisa.memset(dst=total, value=0.0)\n", "", "never written"),
    "accumulator never written": ("        nisa.memset(dst=acc, value=0.0)\n", "", "never written"),
    "rows not stored": ("nisa.dma_copy(dst=out[i * T", "if i: nisa.dma_copy(dst=out[i * T", "never"),
    "rows shifted": ("dst=out[i * T : (i + 1) * T, :]", "dst=out[(tiles - 1 - i) * T : (tiles - i) * T, :]", "another order"),
    "wrong dtype": ("dtype=q.dtype, buffer=nl.shared_hbm", "dtype=nl.float32, buffer=nl.shared_hbm", "float32"),
    "partitions 256": ("top = nl.ndarray((T, 1)", "top = nl.ndarray((2 * T, 1)", "256"),
    "matmul into sbuf": (
        "part = nl.ndarray((T, d), dtype=nl.float32, buffer=nl.psum)",
        "part = nl.ndarray((T, d), dtype=nl.float32, buffer=nl.sbuf)",
        "must be in PSUM",
    ),
    "overfitted to one size": ("tiles = s // T", "tiles = 2", ""),
    "invented instruction": ("nisa.tensor_reduce(", "nisa.row_reduce(", "does not exist"),
    "close name": ("nisa.tensor_reduce(", "nisa.tensor_reduced(", "tensor_reduce"),
    "old arange": ("tiles = s // T", "tiles = s // T; rows = nl.arange(T)", "gone since"),
    "value of an instruction": ("nisa.nc_transpose(dst=turned, data=probs)", "turned = nisa.nc_transpose(probs)", "dst"),
}

TIMED = {
    # only at the size that is timed, where values are not judged
    "nothing is done": ("tiles = s // T", "tiles = s // T if s <= 512 else 0", "writes 0% of an output"),
    "rows are left out": ("for i in range(tiles):", "for i in range(min(tiles, 5)):", "of an output"),
    "keys are left out": ("for j in range(i + 1):", "for j in range(min(i + 1, 4)):", "of the operations"),
    "keys are read and not used": (
        "for j in range(i + 1):",
        "for j in range(i + 1 if s <= 512 else min(i + 1, 1)):",
        "of the operations",
    ),
    "sums are bfloat16 for large sizes alone": (
        "total = nl.ndarray((T, 1), dtype=nl.float32",
        "total = nl.ndarray((T, 1), dtype=nl.bfloat16 if s > 512 else nl.float32",
        "which it uses at no size of --check, and there out is wrong",
    ),
    "the maximum is that of a few keys for large sizes alone": (
        "op=nl.maximum, data=scores, axis=1",
        "op=nl.maximum, data=scores if s <= 512 else scores[:, 0:8], axis=1",
        "and the smaller sizes lead to",
    ),
    "another function for large sizes alone": (
        "nisa.reciprocal(dst=inverse, data=total)",
        "nisa.reciprocal(dst=inverse, data=total) if s <= 512 else nisa.activation(dst=inverse, op=nl.rsqrt, data=total)",
        "which it uses at no size of --check, and there out is wrong",
    ),
    "another number for large sizes alone": (
        "operand0=d**-0.5",
        "operand0=d**-0.5 if s <= 512 else 0.125",
        "has operand0=0.125 in tensor_scalar",
    ),
    "what is computed is not what is stored, for large sizes alone": (
        "], src=done)",
        "], src=done if s <= 512 else vs[:, i, :])",
        "and the smaller sizes lead to",
    ),
    "the tape is cut": (
        "    return out\n",
        "    import nki_hf.sim.run.tape as t\n    e = t._current[-1].entries(0)\n"
        "    e.__delitem__(slice(len(e) // 2, None)) if s > 512 else None\n    return out\n",
        "of an output",
    ),
}

CHEATS = {
    "no decorator": ("@nki.jit\n", "", "no kernel"),
    "syntax error": ("T = 128", "T = = 128", "SyntaxError"),
    "old language": ("import nki\n", "import neuronxcc.nki as nki\n", "before NKI 0.3"),
    "exits": ("T = 128", "import sys; T = 128; sys.exit(0)", "sys.exit"),
    "becomes another program": ("T = 128", "import os; T = 128; os.execv('/bin/true', ['true'])", "exit code 0"),
    "ends its group": ("T = 128", "import os; T = 128; os.kill(0, 15)", "SIGTERM"),
    "closes every file": ("operand0=d**-0.5", "operand0=1.0", "scale", "T = 128", "T = 128\nimport os; os.closerange(0, 512)"),
    "lets no file grow": (
        "T = 128",
        "T = 128\nimport resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
        "changed its own limits",
    ),
    "thousands of outputs": ("    return out\n", "    return (out,) * 10000\n", "10,000 outputs"),
    "an error that cannot be shown": (
        "tiles = s // T",
        "raise type('X', (BaseException,), {'__str__': lambda self: 1 / 0})()\n    tiles = s // T",
        "division by zero",
    ),
    "empties its own file": (
        "operand0=d**-0.5",
        "operand0=1.0",
        "was written while the kernel ran",
        "T = 128",
        "T = 128\nimport pathlib; pathlib.Path(__file__).write_text('')",
    ),
    "exits at once": ("T = 128", "import os; T = 128; os._exit(0)", "exit code 0"),
    "kills itself": ("T = 128", "import os; T = 128; os.kill(os.getpid(), 9)", "SIGKILL"),
    "segfaults": ("T = 128", "import ctypes; T = 128; ctypes.string_at(0)", "SIGSEGV"),
    "hangs": ("T = 128", "T = 128\nwhile True: pass", "still running"),
    "hangs in the kernel": ("tiles = s // T", "tiles = s // T\n    while True: pass", "still running"),
    "eats memory": ("T = 128", "T = 128; x = bytearray(1 << 40)", "memory"),
    "numpy on host arrays": (
        "d, s = q.shape",
        "import numpy as np; x = np.asarray(q).astype(np.float32).sum(); d, s = q.shape",
        "",
    ),
    "patches the simulator's instruction": (
        "T = 128",
        "T = 128\nreal = nisa.nc_matmul\nnisa.nc_matmul = lambda **words: None",
        "",
    ),
    "patches numpy": (
        "T = 128",
        "T = 128\nimport numpy\nnumpy.matmul = lambda *a, **k: 0\nnumpy.allclose = lambda *a: True",
        None,
    ),
    "patches the judge": (
        "operand0=d**-0.5",
        "operand0=1.0",
        "scale",
        "T = 128",
        "T = 128\nimport nki_hf.tools.judging.values as judge\njudge.checked = lambda *a, **k: None\n"
        "import nki_hf.tools.verify_judge as j\nj.judge = lambda *a, **k: None\nimport time\ntime.perf_counter = lambda: 0",
    ),
    "writes the answer file": (
        "operand0=d**-0.5",
        "operand0=1.0",
        "scale",
        "T = 128",
        "T = 128\nimport os, pathlib\nown = pathlib.Path(os.readlink('/proc/self/fd/1')).parent\n"
        "for f in ('judge', 'times', 'stage'): (own / f).write_bytes(b'{}')",
    ),
    "forks": ("T = 128", "T = 128\nimport os, time\nfor _ in range(5):\n    if os.fork() == 0: time.sleep(1000)", None),
    "floods": ("T = 128", "T = 128\nimport sys\nfor _ in range(20000): print('x' * 1000)\nprint('{}', file=sys.stderr)", None),
    "numbers at random": ("operand0=d**-0.5", "operand0=d**-0.5 * __import__('random').random()", "another program"),
    "time of day": (
        "tiles = s // T",
        "import time; w = float(time.time_ns()); tiles = s // T",
        "another program",
        "operand0=d**-0.5",
        "operand0=w",
    ),
    "computes in NumPy": ("d, s = q.shape", "import numpy as np; return np.zeros((q.shape[1], q.shape[0]))", "its Python made"),
    "returns nothing": ("    return out\n", "    return None\n", "returns None"),
    "is a generator": ("    return out\n", "    yield out\n", "yield"),
    "writes its input": ("out = nl.ndarray((s, d), dtype=q.dtype, buffer=nl.shared_hbm)", "out = q.reshape((s, d))", "input q"),
    "swallows a fault": (
        "        nisa.reciprocal(",
        "        try:\n            nisa.memset(dst=nl.ndarray((T, 1 << 20), nl.float32, buffer=nl.sbuf), value=0.0)\n"
        "        except BaseException:\n            pass\n        nisa.reciprocal(",
        "SBUF",
    ),
    "empties the tape": (
        "    return out\n",
        "    import nki_hf.sim.run.tape as t\n    getattr(t._current[-1], 'cores').clear()\n    return out\n",
        "",
    ),
    "forks without end": (
        "T = 128",
        "T = 128\nimport os, time\nfor _ in range(300):\n    if os.fork() == 0: time.sleep(100)",
        "more than 64 processes",
    ),
    "prints without end": ("T = 128", "T = 128\nwhile True: print('x' * 100000)", "256 MiB"),
    "kills the judge": ("T = 128", "T = 128\nimport os\nos.kill(os.getppid(), 9)", "leave other processes alone"),
    "stops the judge": ("T = 128", "T = 128\nimport os, signal\nos.kill(os.getppid(), signal.SIGSTOP)", "killed or stopped"),
    "ignores signals and sleeps, hangs": (
        "T = 128",
        "T = 128\nimport signal, time\nfor s in (1, 2, 3, 14, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "still running",
    ),
    "a thread that edits the tape": (
        "operand0=d**-0.5",
        "operand0=1.0",
        "scale",
        "T = 128",
        "T = 128\nimport gc, threading, time\ndef edit():\n    while True:\n        for o in gc.get_objects():\n"
        "            if type(o).__name__ == 'Recorder': o.returned = {}\n        time.sleep(0.001)\n"
        "threading.Thread(target=edit, daemon=True).start()",
    ),
    "removes the judge's folders": (
        "T = 128",
        "T = 128\nimport os, pathlib, shutil\nshutil.rmtree(pathlib.Path(os.readlink('/proc/self/fd/1')).parent)",
        "before the kernel had returned",
    ),
    "stray threads and a slow end": (
        "T = 128",
        "T = 128\nimport atexit, threading, time\nthreading.Thread(target=lambda: time.sleep(60)).start()\n"
        "atexit.register(lambda: time.sleep(60))",
        None,
    ),
    "a pipe in place of the record": (
        "operand0=d**-0.5",
        "operand0=1.0",
        "scale",
        "T = 128",
        "T = 128\nimport os, pathlib\nown = pathlib.Path(os.readlink('/proc/self/fd/1')).parent\n"
        "for f in ('judge', 'times', 'stage'): os.mkfifo(own / f)",
    ),
    "calls itself without end": ("tiles = s // T", "tiles = s // T\n    def f(n): return f(n + 1)\n    f(0)", "calls itself"),
    "stops by an alarm": ("T = 128", "T = 128\nimport signal\nos = signal.alarm(1)\nwhile True: pass", "SIGALRM"),
    "hides instructions": (
        "T = 128",
        "T = 128\nimport nki_hf.sim.execution.machine as m\nm.Machine.issue = lambda self, *a, **k: None",
        None,
    ),
}


def planted(change) -> str:
    """The right kernel with a mistake: pairs of text and replacement, over the flat entries of the tables."""
    pairs = [change[0], change[1]] if isinstance(change[0], tuple) else [(change[0], change[1])]
    if len(change) == 5:
        pairs.append((change[3], change[4]))
    text = RIGHT
    for old, new in pairs:
        if old not in text:
            raise ValueError(old)
        text = text.replace(old, new)
    return text
