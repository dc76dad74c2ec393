"""Names that stubs of the language define, and what the lists of ours lack or sign otherwise."""

from nki_hf.sim.surface.entry import UNLISTED, exact
from tools.conformance.stub_names import differences, names_of

NAMES = '''
DType = str
wide: DType = ...
limits: _Limits = ...
class Kind(Enum):
    r"""Doc."""
    b = 2
    a = 'one'
class Tensor:
    shape: tuple[int, ...] = ...
    def __init__(self, shape, space=Kind.a, name=''):
        ...
    def view(self, dtype, *, copy=False): ...
    @property
    def size(self) -> int: ...
    def _hidden(self): ...
class _Limits:
    most: int = ...
class Failed(Exception): ...
def move(dst, *rest, count=[0], fill=..., name=None): ...
def _hidden(): ...
'''


def test_the_names_of_a_stub_are_those_that_it_defines_with_constructors_members_and_aliases():
    assert names_of(NAMES) == {
        "DType": "",
        "wide": "",
        "limits": "",
        "limits.most": "",
        "Kind": '{b=2, a="one"}',
        "Tensor": '(shape, space=a, name="")',
        "Tensor.shape": "",
        "Tensor.view": "(dtype, *, copy=False)",
        "Tensor.size": "",
        "Failed": "",
        "move": "(dst, *rest, count=[0], fill=..., name=None)",
    }


def test_names_that_a_list_lacks_or_signs_otherwise_are_told():
    stub = {"DType": "", "Kind": "{b=2, a=1}", "move": "(dst, count=[0], fill=..., name=None)", "jit": "(fn=None, **kwargs)"}
    listed = {
        "DType": exact(),
        "Kind": exact("{a=1, b=2}"),
        "move": exact("(dst, count=(0,), fill=9, name=None)"),
        "jit": exact("(fn=None, target=None, **kwargs)"),
        "new": exact(since="0.7"),
    }
    assert differences("m", stub, listed) == []
    assert differences("m", stub, {key: item for key, item in listed.items() if key != "DType"}) == ["m.DType: not listed"]
    assert differences("m", stub, {**listed, "more": exact("", UNLISTED + "kernels use it")}) == []
    assert differences("m", stub, {**listed, "more": exact()}) == ["m.more: listed, but not in the stub"]
    wrong = {**listed, "move": exact("(dst, fill=9, name=None)"), "Kind": exact("{a=1}"), "jit": exact()}
    assert [line.split(":")[0] for line in differences("m", stub, wrong)] == ["m.Kind", "m.move", "m.jit"]
