"""Weights in place of a module's parameters: `load_into`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import Parameter, is_lazy

from pagestream._common import checks
from pagestream._common.generators import telling
from pagestream._common.progress import reporting
from pagestream.devices import constructors
from pagestream.devices.planned import planned, shape_of
from pagestream.devices.torch_tensors import dtype_named
from pagestream.torch._joining import joined
from pagestream.torch.weights import tensors_on, usable
from pagestream.weights.checkpoint import opened

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    import torch.distributed as dist

    from pagestream._common.progress import Progress
    from pagestream._common.types import StrPath
    from pagestream.torch._meeting import Meeting
    from pagestream.weights.checkpoint import Checkpoint
    from pagestream.weights.plan import Plan
    from pagestream.weights.streaming import Strategy, Wanted

__all__ = ["LoadReport", "Rename", "load_into"]

# From a checkpoint's name to the module's; None to leave the tensor out.
Rename: TypeAlias = "Mapping[str, str | None] | Callable[[str], str | None] | None"


@dataclass(frozen=True)
class LoadReport:
    """What `load_into` did.

    Attributes:
        missing: Names that only the module has.
        unexpected: Names that only the checkpoint has, as they are in the module where they were renamed.
        tied: Names of the module that share their tensor with another one, which was loaded, by name.
            What the checkpoint has under these names was neither read nor compared.
        nbytes: Bytes that were read.
        on_meta: Names of parameters and buffers that are on ``meta`` still: what is missing, and buffers that
            are not persistent, which no checkpoint has and the program has to compute.

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
    """A parameter or buffer, perhaps of several modules.

    Attributes:
        tensor: What the modules have now.
        names: Its names, the first one first.
        places: Each module that has it, with its name there.
    """

    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)
    places: list[tuple[torch.nn.Module, str]] = field(default_factory=list)

    def put(self, tensor: torch.Tensor, *, assign: bool) -> None:
        """Copies a tensor into the present one, or takes it in its place."""
        if not assign and not self.tensor.is_meta:
            self.tensor.detach().copy_(tensor)
            return
        if not assign:
            tensor = tensor.to(self.tensor.dtype)
        if isinstance(self.tensor, Parameter):
            tensor = Parameter(tensor, requires_grad=self.tensor.requires_grad)
            # What others have noted on it, as trainers do that split models; not what a fake tensor is.
            vars(tensor).update(vars(self.tensor) | vars(tensor))
        for module, name in self.places:
            setattr(module, name, tensor)
        # The memory of the old one is free from here on, and not at the end of the model.
        self.tensor = tensor

    def device(self) -> torch.device:
        """Returns where its content belongs."""
        return torch.get_default_device() if self.tensor.is_meta else self.tensor.device


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
    """Fills a module from a checkpoint, tensor by tensor, without a second copy of it in memory.

    By default, tensors are copied into those that the module has, which keep their types and devices.
    Parameters and buffers on ``meta`` get memory of their own, one at a time, of the type that they have
    there, on torch's default device: ``with torch.device("cuda"): load_into(…)`` fills a module that has no
    memory yet. A tensor that several modules share is read once and stays shared; of its names the first that
    the checkpoint has counts (``torch.nn.Module.load_state_dict`` copies all, so that the last one counts).
    Tensors of a module that overlap without being one are filled in the order of the files. Buffers that are
    not persistent are left alone; the report names those that stay on ``meta``. Modules with a
    ``_load_from_state_dict`` or ``set_extra_state`` of their own are filled by names and shapes all the same;
    neither is called.

    Names and shapes are compared before any tensor is read: then the module is as it was. After a failure
    that comes later some tensors are loaded and others are not.

    Args:
        module: What to fill.
        path: A file, a folder, an index or a list of files, or an open `Checkpoint`, which stays open; see
            `stream_checkpoint`.
        plan: Which tensors to load, and which parts of them, by the names of the checkpoint; see
            `Checkpoint.stream`.
        rename: The module's name for a checkpoint's name: a mapping, which changes only the names that it
            has, or a function of every name. None in place of a name leaves that tensor out.
        strict: Whether it is an error if a name is missing in the checkpoint, or unexpected. With False the
            report lists such names, and what is missing stays as it is.
        assign: Whether the module gets the loaded tensors themselves, of the types in the files, on the
            devices of those that they replace. On the CPU they may be views of the files, as those of
            `load_state_dict`.
        process_group: Ranks that load at the same time, each into a module of its own, and share the reads;
            see `stream_checkpoint`.
        progress: True for a bar, on rank 0 alone, or a callable that gets (bytes done, bytes in all).

    Returns:
        The report.

    Raises:
        RuntimeError: Names are missing or unexpected, with `strict`; or shapes differ; or parameters are
            DTensors, as those of FSDP2 are. All of them are listed, the first ones in the words of
            ``torch.nn.Module.load_state_dict``.
        TypeError: `module` is no module, or `rename` no such mapping or function.
        ValueError: Two tensors of the checkpoint get one name; or a parameter is not initialised
            (``torch.nn.LazyLinear`` and its like); or `path` is a `Checkpoint` that is closed.
        OSError: A file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid checkpoint, or a type that torch does not have.
        KeyError: The plan has a name that is not there.
        MappedReadError: A file was cut or its storage failed.
        FileChangedError: A file was rewritten meanwhile.
        RankError: Another rank of `process_group` has failed.

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
        # What is wrong with the arguments of one rank is told to the others.
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
        TypeError: `rename` is neither a mapping nor a function, or gives something that is no name.
        ValueError: Two tensors get one name.
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
    """Returns the parameters and persistent buffers of a module. Names of one tensor have one target.

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
    """Returns what two tensors have in common if they are one, or views of the same elements."""
    address = 0 if tensor.is_meta or constructors.is_fake(tensor) else tensor.data_ptr()
    if not address:
        return id(tensor)
    return type(tensor), tensor.device, tensor.dtype, address, tuple(tensor.shape), tensor.stride()


def _matched(
    names: dict[str, Wanted], targets: dict[str, _Target]
) -> tuple[list[tuple[Wanted, _Target]], LoadReport]:
    """Returns what goes where, in the order of the plan, and the report."""
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
    """Returns torch's words for names that are in one place only."""
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
    """Returns torch's words for tensors that differ in shape, and words for types that have no gradient."""
    found = []
    for name, each in names.items():
        if name not in targets:
            continue
        tensor = targets[name].tensor
        if hasattr(tensor, "device_mesh"):
            found.append(
                f"{name} is a DTensor, of which this rank has a part: load it by "
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
            found.append(f"type mismatch for {name}: {kind} of the checkpoint has no gradient.")
    return found


def _load(
    weights: Checkpoint,
    chosen: list[tuple[Wanted, _Target]],
    *,
    assign: bool,
    meeting: Meeting | None,
    progress: Progress,
) -> None:
    """Streams the tensors to each device in turn, and puts them in their places."""
    lots: dict[tuple[torch.device, Strategy], dict[str, tuple[Wanted, _Target]]] = {}
    for each, target in chosen:
        # What is new in the module is memory of its own, unless the user asked for the loaded tensors.
        strategy: Strategy = "pread" if target.tensor.is_meta and not assign else "auto"
        # Ranks load all in one go, because their devices differ.
        key = (usable(target.device()), strategy) if meeting is None else (torch.device("cpu"), "auto")
        lots.setdefault(key, {})[each.info.name] = each, target
    done_bytes, total_bytes = 0, sum(each.nbytes for each, _ in chosen)
    if meeting is not None:
        # Also a rank that wants nothing meets the others.
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
    # Views of a file that was cut meanwhile would have been zeros.
    weights.check()
