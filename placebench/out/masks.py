"""What a shared run says in place of names, paths, addresses, tokens and the words of a user's job.

Of texts that are not placebench's own nothing stays but the class of an exception. Those that are its own name what
they are about: whatever in them has the form of a path, an address or a token is replaced, known or not.
"""

import getpass
import ipaddress
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from placebench import errors
from placebench.compare.read.run import Launch, Run
from placebench.logs.registry import DIALECTS
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.job_record import LogFlag
from placebench.spec.nested import flatten
from placebench.spec.shapes import PRESETS
from placebench.spec.workload import Workload, choices_of

_FILES = frozenset(one.name for of in (Trial, RunFolder) for one in vars(of).values() if hasattr(one, "about"))
_OWN_ERRORS = frozenset(name for name, one in vars(errors).items() if isinstance(one, type) and name.endswith("Error"))
_TRAPS = frozenset(trap.text for dialect in DIALECTS for trap in dialect.traps)
_REMARK = "the job's own processes have a remark, which is not shared"
# Values of `data.source` and `data.reward` that are no file and no function of the user's.
_WORDS = frozenset(("arithmetic", "code", "prefix_match", "exact_match", "last_number", "code_tests"))

# How a launch ends that left no exception, as `run.failures`, `run.launch` and `jobs.bridge` say it.
_SIGNAL = r"(?:SIG[A-Z\d]+|signal \d+)"
_END = re.compile(
    rf"(?:the (?:job|command) ended with (?:exit code \d+|{_SIGNAL})(?: after \d+(?: of \d+)? steps)?"
    rf"|the job ended after \d+ of \d+ steps|the job was killed by {_SIGNAL}|stopped by {_SIGNAL}"
    r"|the kernel killed a process because memory ran out|no progress for [\d.:]+ (?:s|min|h)\b"
    r"|the head of the launch's own Ray \(gcs_server\) was killed"
    r"|the head of the Ray cluster does not answer any more|the time limit has passed)"
)
_LIMIT = re.compile(
    r"the (?:address space of a process|size of a file|number of open files|number of processes and threads"
    r"|CPU time of a process) is limited to [\d.,]+(?: MiB| GiB)? by ulimit -[a-z]"
)
_CLASS = re.compile(r"(?:\w+\.)*(?P<name>[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Timeout))(?=[:\s(]|$)")
_DAMAGE = re.compile(rf"(?<![^\s/])(?:{'|'.join(map(re.escape, sorted(_FILES)))})(?:, line \d+)?(?=:)")

# Each names all of its form. What has a slash in it, or begins as a variable, is a path up to the end of its clause, as
# paths have blanks; in quotation marks it is all that is within, or all behind the mark where the text was cut. Other
# words in quotation marks are the user's, unless placebench knows them.
_QUOTED = re.compile(r"""(?<!\w)(["'`])(?P<within>(?:(?!\1).)*?[/\\$~@:](?:(?!\1).)*)(?:\1(?!\w)|$)""", re.M)
_SAID = re.compile(r"""(?<!\w)(["'])(?P<within>(?:(?!\1).)+)\1(?!\w)""")
_METRIC = r"(?:timing_s/\w+|perf/\w+|tokens/s(?:/device)?|step \d+/\d+|\d+/\d+)(?=[\s,;:.)]|$)"
_PATH = re.compile(rf"(?<!\S)\(?(?!{_METRIC})(?=\S*[/\\$~])[^(\s].*?(?=[:;,)](?:\s|$)|\s\(|$)", re.M)
_URL = re.compile(r"[A-Za-z][\w+.-]*://\S+")
_PERSON = re.compile(r"[^\s@'\"`(]+@[^\s'\"`)]+")
_SECRET = re.compile(
    r"(?i:[\w-]*(?:token|api[_-]?key|secret|passw(?:or)?d|credential|authorization)\w*\s*[=:]\s*(?:(?:bearer|basic)\s+)?\S+"
    r"|--?[\w-]*(?:token|key|secret|passw(?:or)?d)\s+\S+|\b(?:user|host)(?:name)?=\S+|\bbearer\s+\S+)|\b(?!PLACEBENCH_)[A-Z][A-Z\d_]*=\S+"
    r"|(?<![A-Za-z\d])(?:hf_|[sprx]k[-_]|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|wandb_|AKIA|AIza|eyJ)[\w.+=-]{4,}"
    r"|(?<![\w-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{24,}"
)
_IPV6 = re.compile(r"(?<![\w:.])\[?(?P<address>[\da-f]{0,4}(?::[\da-f.]{0,15}){2,8})(?:%\w+)?\]?(?::\d+)?(?!\w)", re.I)
_IPV4 = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
_DOTTED = re.compile(r"(?<![\w.-])(?=[\w.-]*[^\W\d])[\w-]+(?:\.[\w-]{2,})+(?::\d+)?")
_PORT = re.compile(r"(?<![\w./-])(?!(?:cpu|gpu):)[A-Za-z][\w-]*:\d{2,5}(?![\w:])")
_HOME = re.compile(r"/(?:home|Users|root)/([\w.-]+)")
# Names that say nothing of anyone, which are words of the texts, too.
_NOBODY = ("", "root", "localhost")


def _user() -> str:
    """The name of who calls; empty for a number without a name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return ""


class Masks:
    """What stands in a shared run for what is not to be given away.

    Args:
        run: the run.
        keep_host: keep the names of hosts and nodes, their addresses and the ids of GPUs.
    """

    def __init__(self, run: Run, *, keep_host: bool) -> None:
        self._record, self.keeps_host = run.record, keep_host
        names = dict.fromkeys(device.node for device in run.record.devices)
        nodes = {name: f"node{number}" for number, name in enumerate(names)}
        self.nodes = {} if keep_host else nodes
        several = len(nodes) > 1
        self.devices: Mapping[str, str] = {
            one.id: one.id if keep_host else f"{f'{nodes[one.node]}/' if several else ''}{one.kind}:{one.index}"
            for one in run.record.devices
        }

    @cached_property
    def _names(self) -> dict[str, str]:
        """What stands for the names of users and hosts, the longest first."""
        content = self._record.model_dump_json()
        names = dict.fromkeys((_user(), *_HOME.findall(content)), "user")
        if not self.keeps_host:
            cluster = self._record.cluster.model_dump() if self._record.cluster else {}
            others = [str(node.get("name")) for node in cluster.get("nodes", ()) if isinstance(node, dict)]
            full = dict.fromkeys([str(self._record.host.get("hostname") or ""), *others], "host") | self.nodes
            names |= {name.split(".")[0]: mask for name, mask in full.items()} | full | dict(self.devices)
        return {name: names[name] for name in sorted(names, key=len, reverse=True) if name not in _NOBODY}

    def name(self, text: str) -> str:
        """A name that the user gave, in which every name of a user, a host or a device is a word for it."""
        if not self._names:
            return text
        names = "|".join(map(re.escape, self._names))
        return re.sub(rf"(?<!\w)(?:{names})(?!\w)", lambda found: self._names[found[0]], text)

    def text(self, text: str) -> str:
        """A text of placebench's own without paths, addresses, tokens and names; files of a run keep their names."""
        text = _URL.sub("address", text)
        text = self.name(text)
        text = _QUOTED.sub(lambda found: _path(found["within"]), text)
        text = _PATH.sub(lambda found: "(" * found[0].startswith("(") + _path(found[0]), text)
        text = _SAID.sub(lambda found: found[0] if _is_own(found["within"]) else "word", text)
        text = _SECRET.sub("secret", _PERSON.sub("address", text))
        if self.keeps_host:
            return text
        text = _PORT.sub("address", _IPV4.sub("address", _IPV6.sub(_address, text)))
        return _DOTTED.sub(lambda found: found[0] if _is_own(found[0]) else "name", text)

    def error(self, launch: Launch) -> str | None:
        """Why a launch is not in the numbers, as far as placebench itself says it; None where nothing is left.

        An exception that is not placebench's own is its class, and so is every one that a job of the user's names.
        """
        said, is_of_user = launch.error or "", self._record.job is not None
        if launch.status is Status.DAMAGED:
            damage = _DAMAGE.search(said)
            if is_of_user:
                return damage[0] if damage else None
            # Its folder's name is known, whatever blanks it has.
            return self.text(said.replace(f"{launch.trial.path}/", ""))
        limit = _LIMIT.match(said)
        reason = said[limit.end() :].removeprefix(": ") if limit else said
        found = _CLASS.match(reason)
        if found and found["name"] in _OWN_ERRORS and not is_of_user:
            reason = self.text(reason)
        elif found:
            reason = found["name"]
        else:
            end = _END.match(reason)
            reason = end[0] if end else ""
        return ": ".join(filter(None, (limit and limit[0], reason))) or None

    def flag(self, flag: LogFlag) -> LogFlag:
        """What to mind of a log; what the hooks in a job say may be in the words of its exceptions."""
        if flag.text in _TRAPS:
            return flag
        return flag.model_copy(update={"text": _REMARK if flag.name == LogFlag.SPANS else self.text(flag.text)})

    def workload(self) -> dict[str, Any]:
        """The workload, in which every word of the user's is the name of its key: of a model, unless the hub has it."""
        known = flatten(Workload().model_dump(mode="json"))
        return self._masked(self._record.workload, known)

    def _masked(self, content: Mapping[str, Any], known: Mapping[str, Any], above: str = "") -> dict[str, Any]:
        return {key: self._value(f"{above}{key}", value, known) for key, value in content.items()}

    def _value(self, key: str, value: Any, known: Mapping[str, Any]) -> Any:
        if isinstance(value, dict):
            return self._masked(value, known, f"{key}.")
        if not isinstance(value, str):
            return value
        public = (*choices_of(key), *PRESETS, *self._record.hub_models, *_WORDS, known.get(key))
        return value if value in public else key.rpartition(".")[2]

    def line(self, line: BaseModel) -> dict[str, Any]:
        """A line of a launch's files."""
        content = line.model_dump()
        if (device := content.get("device")) is not None:
            content["device"] = self.devices.get(device, device)
        if message := content.get("message"):
            content["message"] = self.text(message)
        if absent := content.get("gpm_absent"):
            content["gpm_absent"] = {self.devices.get(one, one): self.text(why) for one, why in absent.items()}
        return content


def _path(text: str) -> str:
    """What stands for a path: a file of a run is no secret, all others are."""
    last = re.split(r"[/\\]", text)[-1]
    return last if last in _FILES else "path"


def _address(found: re.Match[str]) -> str:
    try:
        ipaddress.IPv6Address(found["address"])
    except ValueError:  # a time, `1:02:03`
        return found[0]
    return "address"


def _is_own(word: str) -> bool:
    """Whether a word is one of placebench's: a file of a run, a key of the workload, a preset."""
    return word in _FILES or word in PRESETS or word in flatten(Workload().model_dump())
