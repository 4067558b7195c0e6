"""Loading a checkpoint into a module: `load_into`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.nn.parameter import Parameter, is_lazy

from pagestream._common import checks
from pagestream._common.generators import telling
from pagestream._common.keywords import advises
from pagestream._common.progress import Progress, reporting
from pagestream._common.public import set_module
from pagestream._common.types import StrPath
from pagestream.devices import constructors
from pagestream.devices.planned import planned, shape_of
from pagestream.devices.torch_tensors import dtype_named
from pagestream.torch._joining import joined
from pagestream.torch._meeting import Meeting
from pagestream.torch.weights import tensors_on, usable
from pagestream.weights.checkpoint import Checkpoint, opened
from pagestream.weights.plan import Plan
from pagestream.weights.streaming import Strategy, Wanted

__all__ = ["LoadReport", "Rename", "load_into"]

# Maps a checkpoint's name to the module's name, or to None to skip the tensor.
Rename: TypeAlias = "Mapping[str, str | None] | Callable[[str], str | None] | None"


@set_module("pagestream.torch")
@dataclass(frozen=True)
class LoadReport:
    """The result of `load_into`.

    Attributes:
        missing: Names that only the module has.
        unexpected: Names that only the checkpoint has, after renaming.
        tied: For each name in the module that shares the tensor of another name, the name that was loaded.
            For example, ``{"lm_head.weight": "embed_tokens.weight"}`` for tied embeddings. If the checkpoint
            also has a tensor for a tied name, it was neither read nor compared.
        nbytes: Number of bytes loaded.
        on_meta: Names of parameters and buffers that are still on ``meta``: missing tensors, and
            non-persistent buffers. Checkpoints do not store the latter, so the program must compute them.

    Examples:
        >>> from pagestream.torch import LoadReport
        >>> LoadReport([], ["rope.inv_freq"], {}, 96).unexpected
        ['rope.inv_freq']
    """

    missing: list[str]
    unexpected: list[str]
    tied: dict[str, str]
    nbytes: int
    on_meta: list[str] = field(default_factory=list)


@dataclass(eq=False)
class _Target:
    """A parameter or buffer, which several modules may share.

    Attributes:
        tensor: The current tensor in the modules.
        names: All its names, in the order of the modules.
        places: Each module that holds the tensor, and the tensor's name in that module.
    """

    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)
    places: list[tuple[torch.nn.Module, str]] = field(default_factory=list)

    def put(self, tensor: torch.Tensor, *, assign: bool) -> None:
        """Copies a tensor into the current one, or replaces the current one with it."""
        if not assign and not self.tensor.is_meta:
            self.tensor.detach().copy_(tensor)
            return
        if not assign:
            tensor = tensor.to(self.tensor.dtype)
        if isinstance(self.tensor, Parameter):
            tensor = Parameter(tensor, requires_grad=self.tensor.requires_grad)
            # Keep attributes that other code has set on the parameter, such as the annotations of trainers
            # that split models. The new tensor's own attributes win: a fake tensor keeps its state in them.
            vars(tensor).update(vars(self.tensor) | vars(tensor))
        for module, name in self.places:
            setattr(module, name, tensor)
        # This frees the old tensor's memory now instead of at the end of the load.
        self.tensor = tensor

    def device(self) -> torch.device:
        """Returns the device that the loaded tensor belongs on."""
        return torch.get_default_device() if self.tensor.is_meta else self.tensor.device


@set_module("pagestream.torch")
@advises("torch.load_into")
def load_into(
    module: torch.nn.Module,
    path: StrPath | Iterable[StrPath] | Checkpoint,
    *,
    plan: Plan = None,
    rename: Rename = None,
    strict: bool = True,
    assign: bool = False,
    process_group: dist.ProcessGroup | None = None,
    progress: Progress = False,
) -> LoadReport:
    """Loads a checkpoint into a module, tensor by tensor, without a second copy of the checkpoint in memory.

    By default, each loaded tensor is copied into the module's existing tensor, which keeps its type and
    device. A parameter or buffer on ``meta`` gets memory on torch's default device when its turn comes, and
    keeps its type. For example, ``with torch.device("cuda"): load_into(…)`` fills a module that was created
    on ``meta``. Non-persistent buffers are not loaded; the report lists any that stay on ``meta``.

    A tensor that several modules share is read once and stays shared. If the checkpoint has several of its
    names, the first one is loaded (``torch.nn.Module.load_state_dict`` copies all, so there the last one
    wins). Tensors that overlap in memory in any other way are filled in the order of the files. All modules
    are filled by name and shape; their own ``_load_from_state_dict`` and ``set_extra_state`` are not called.

    Names and shapes are compared before any tensor is read. If they do not match, the module is unchanged.
    After a later failure, the module may be partly loaded.

    Args:
        module: The module to fill.
        path: A file, a folder, an index or a list of files, or an open `Checkpoint`, which stays open; see
            `stream_checkpoint`.
        plan: Which tensors to load, and which parts of them, by the names of the checkpoint; see
            `Checkpoint.stream`.
        rename: How to rename the checkpoint's tensors to match the module. A mapping renames only the names
            that it contains. A function is called with every name. The value None skips the tensor.
        strict: Whether to raise an error if a name is missing from the checkpoint or is unexpected. With
            False, the report lists such names, and missing tensors keep their values.
        assign: Whether to put the loaded tensors themselves into the module. They have the types of the
            files, and the devices of the tensors that they replace. On the CPU they may be views of the
            files, as in `load_state_dict`.
        process_group: Ranks that load at the same time, each into its own module, and share the reads; see
            `stream_checkpoint`.
        progress: True for a progress bar (on rank 0 only), or a callable that gets (bytes done, total bytes).

    Returns:
        A report of the names that did not match, and of the bytes loaded.

    Raises:
        RuntimeError: With `strict`, names are missing or unexpected; or shapes differ; or parameters are
            DTensors, as in FSDP2; or with `assign`, a parameter that requires a gradient would get a type
            without one. The error lists all of them, in the words of ``torch.nn.Module.load_state_dict`` if
            it has a message for the case. Also if another load of this process uses `process_group`.
        TypeError: `module` is not a module, or `rename` is not a mapping or function of names.
        ValueError: Two tensors of the checkpoint get the same name; or a parameter is not initialised, for
            example in a ``torch.nn.LazyLinear``; or `path` is a closed `Checkpoint`; or a tensor would be
            loaded to a device other than the CPU, a CUDA GPU or ``mps``.
        OSError: A file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: The checkpoint is not valid, or has a type that torch lacks.
        KeyError: The checkpoint lacks a name in the plan.
        MappedReadError: A file was truncated, or its storage failed.
        FileChangedError: A file was rewritten during the load.
        RankError: Another rank of `process_group` has failed.
        TimeoutError: Another rank of `process_group` has not begun within the group's time-out.

    Examples:
        >>> import torch
        >>> from pagestream.torch import load_into
        >>> with torch.device("meta"):
        ...     layer = torch.nn.Linear(3, 2)
        >>> load_into(layer, "model.safetensors", plan=["weight"], strict=False).missing
        ['bias']
        >>> layer.weight.device, layer.weight.dtype
        (device(type='cpu'), torch.float32)
    """
    with joined(process_group) as meeting:
        # Check the arguments after joining, so that all ranks learn of one rank's invalid arguments.
        checks.check_bool("strict", strict)
        checks.check_bool("assign", assign)
        _check_module(module)
        with opened(path) as weights:
            wanted = planned(weights, plan, "file")
            names = _renamed(wanted, rename)
            targets = _targets(module)
            chosen, report = _matched(names, targets)
            problems = _problems(report, strict=strict) + _misfits(names, targets, assign=assign)
            if problems:
                message = f"Error(s) in loading state_dict for {type(module).__name__}:"
                raise RuntimeError("\n\t".join([message, *problems, _source(weights)]))
            _load(weights, chosen, assign=assign, meeting=meeting, progress=progress)
            return replace(report, on_meta=_on_meta(module))


def _on_meta(module: torch.nn.Module) -> list[str]:
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return [name for name, tensor in tensors if tensor.is_meta]


def _check_module(module: object) -> None:
    if not isinstance(module, torch.nn.Module):
        kind = type(module).__name__
        message = f"module must be a torch.nn.Module, not {kind}; load_state_dict makes a dict of tensors"
        raise TypeError(message)


def _renamed(wanted: list[Wanted], rename: Rename) -> dict[str, Wanted]:
    """Returns the tensors by their names in the module.

    Raises:
        TypeError: `rename` is neither a mapping nor a function, or returns neither a name nor None.
        ValueError: Two tensors get the same name.
    """
    if not (rename is None or isinstance(rename, Mapping) or callable(rename)):
        message = f"rename must be a mapping, a function or None, not {rename!r}"  # type: ignore[unreachable]
        raise TypeError(message)
    found: dict[str, Wanted] = {}
    for each in wanted:
        name: str | None = each.info.name
        if isinstance(rename, Mapping):
            name = rename.get(each.info.name, each.info.name)
        elif rename is not None:
            name = rename(each.info.name)
        if not (name is None or isinstance(name, str)):
            message = f"rename must give a str or None for {each.info.name!r}, not {name!r}"  # type: ignore[unreachable]
            raise TypeError(message)
        if name in found:
            info, other = each.info, found[name].info
            both = f"{info.name!r} of {info.path} and {other.name!r} of {other.path}"
            message = f"rename gives {both} one name: {name!r}"
            raise ValueError(message)
        if name is not None:
            found[name] = each
    return found


def _targets(module: torch.nn.Module) -> dict[str, _Target]:
    """Returns the parameters and persistent buffers of a module by name. Tied names have the same target.

    Raises:
        ValueError: A parameter is not initialised.
    """
    found: dict[str, _Target] = {}
    by_memory: dict[Any, _Target] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        transient = owner._non_persistent_buffers_set  # noqa: SLF001 - torch has no public name for it
        buffers = owner.named_buffers(recurse=False, remove_duplicate=False)
        kept = [(name, buffer) for name, buffer in buffers if name not in transient]
        for name, tensor in [*owner.named_parameters(recurse=False, remove_duplicate=False), *kept]:
            full_name = f"{prefix}.{name}" if prefix else name
            if is_lazy(tensor):
                message = f"{full_name} is not initialised: its shape is not known before the first forward"
                raise ValueError(message)
            target = by_memory.setdefault(_memory_of(tensor), _Target(tensor))
            target.names.append(full_name)
            target.places.append((owner, name))
            found[full_name] = target
    return found


def _memory_of(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - hashable
    """Returns a key that two tensors share if they are the same object, or equal views of the same memory."""
    address = 0 if tensor.is_meta or constructors.is_fake(tensor) else tensor.data_ptr()
    if not address:
        return id(tensor)
    return type(tensor), tensor.device, tensor.dtype, address, tuple(tensor.shape), tensor.stride()


def _matched(
    names: dict[str, Wanted], targets: dict[str, _Target]
) -> tuple[list[tuple[Wanted, _Target]], LoadReport]:
    """Returns each tensor to load with its target, in the order of the plan, and the report."""
    chosen: dict[str, _Target] = {}
    missing: list[str] = []
    tied: dict[str, str] = {}
    for target in dict.fromkeys(targets.values()):
        source = next((name for name in target.names if name in names), None)
        if source is None:
            missing += target.names
            continue
        chosen[source] = target
        tied |= {name: source for name in target.names if name != source}
    pairs = [(each, chosen[name]) for name, each in names.items() if name in chosen]
    unexpected = [name for name in names if name not in targets]
    return pairs, LoadReport(missing, unexpected, tied, sum(each.nbytes for each, _ in pairs))


def _problems(report: LoadReport, *, strict: bool) -> list[str]:
    """Returns torch's messages about names that only the module or only the checkpoint has."""
    kinds = (("Missing", report.missing), ("Unexpected", report.unexpected))
    return [
        f"{kind} key(s) in state_dict: {', '.join(map(_quoted, found))}. "
        for kind, found in kinds
        if strict and found
    ]


def _source(weights: Checkpoint) -> str:
    first, *others = weights.files
    return f"The checkpoint is {first!r}{f' and {len(others)} other files' if others else ''}."


def _quoted(name: str) -> str:
    return f'"{name}"'


def _misfits(names: dict[str, Wanted], targets: dict[str, _Target], *, assign: bool) -> list[str]:
    """Returns messages about DTensors, different shapes (in torch's words), and types without a gradient."""
    found = []
    for name, each in names.items():
        if name not in targets:
            continue
        tensor = targets[name].tensor
        if hasattr(tensor, "device_mesh"):
            found.append(
                f"{name} is a DTensor, and this rank has only a part of it: load it with "
                "torch.distributed.checkpoint and pagestream.torch.HuggingFaceStorageReader."
            )
            continue
        shape = torch.Size(shape_of(each))
        if shape != tensor.shape:
            found.append(
                f"size mismatch for {name}: copying a param with shape {shape} from checkpoint, "
                f"the shape in current model is {tensor.shape}."
            )
        kind = dtype_named(each.info.dtype)
        if assign and tensor.requires_grad and not (kind.is_floating_point or kind.is_complex):
            found.append(f"type mismatch for {name}: {kind} in the checkpoint cannot have a gradient.")
    return found


def _usable_for(target: _Target) -> torch.device:
    """Returns the device of a target.

    Raises:
        ValueError: Tensors cannot be loaded to this device.
    """
    device = target.device()
    try:
        return usable(device)
    except ValueError as error:
        if target.tensor.is_meta:
            place = f"torch's default device, which is {str(device)!r}"
            remedy = 'call load_into within `with torch.device("cpu"):` or that of a GPU'
            message = f"cannot load {target.names[0]!r}: a tensor on meta gets memory on {place}; {remedy}"
        else:
            remedy = "call module.to_empty(device=...) with such a device first"
            message = f"cannot load {target.names[0]!r}, which is on {str(device)!r}: {error}; {remedy}"
        raise ValueError(message) from error


def _load(
    weights: Checkpoint,
    chosen: list[tuple[Wanted, _Target]],
    *,
    assign: bool,
    meeting: Meeting | None,
    progress: Progress,
) -> None:
    """Streams the tensors to one device after the other, and puts each tensor into its modules."""
    lots: dict[tuple[torch.device, Strategy], dict[str, tuple[Wanted, _Target]]] = {}
    for each, target in chosen:
        # A tensor that replaces one on `meta` owns its memory, unless the caller asked for `assign`.
        strategy: Strategy = "pread" if target.tensor.is_meta and not assign else "auto"
        device = _usable_for(target)
        # With a group, load all tensors through the CPU in one stream, because the ranks' devices may differ.
        key = (device, strategy) if meeting is None else (torch.device("cpu"), "auto")
        lots.setdefault(key, {})[each.info.name] = each, target
    done_bytes, total_bytes = 0, sum(each.nbytes for each, _ in chosen)
    if meeting is not None:
        # A rank that loads nothing has to meet the other ranks, too.
        lots.setdefault((torch.device("cpu"), "auto"), {})
    with torch.no_grad(), reporting(progress, total_bytes, "tensors") as report:
        for (device, means), here in lots.items():
            wanted = [each for each, _ in here.values()]
            stream = tensors_on(
                device, weights, wanted, strategy=means, cast_of=lambda _: None, meeting=meeting
            )
            with telling(stream) as pairs:
                for each, tensor in pairs:
                    target = here[each.info.name][1]
                    if meeting is not None:
                        tensor = tensor.to(target.device())  # noqa: PLW2901
                    target.put(tensor, assign=assign)
                    del tensor
                    done_bytes += each.nbytes
                    if report is not None:
                        report(done_bytes)
    # Raise if a file was truncated during the load: its views would have read as zeros.
    weights.check()
