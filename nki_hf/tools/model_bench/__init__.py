"""The model benchmark: one model's forward pass under several attentions, with accuracy, times and a verdict.

In the order of a run: options -> model -> worlds (compile, call, wait) -> reference (fp32 eager on CPU, cached) ->
measure -> accuracy -> record (JSON) -> report (text). `run.run` is the whole of it;
examples/qwen3_bench.py is its command line.
"""

from nki_hf.errors import require

require("The model benchmark", "hf", "pydantic", "platformdirs", "filelock")
