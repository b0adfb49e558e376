"""Attempts to escape from a sandbox: a program for a bare interpreter, with the name of an attempt and some facts.

Each function is one attempt. It returns True if it noticed that it escaped, or the data that it could read; the arena
checks for effects outside (a changed file, a connection, a remaining process). A successful attempt does no harm: the
same code runs without a sandbox to show that it works.

The program is started about a hundred times in a test run, so slow imports are made where they are needed.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Facts: TypeAlias = dict[str, Any]
    Attempt: TypeAlias = Callable[[Facts], object]

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
EPERM, ENOSYS = 1, 38
NOT_MAPPED = ctypes.c_void_p(-1).value
MEGABYTE = b"\0" * (1024 * 1024)
OWN_SETTINGS = tuple(
    f"/proc/sys/{name}"
    for name in ("fs/mqueue/", "kernel/auto_msgmni", "kernel/msg", "kernel/pid_max", "kernel/sem", "kernel/shm")
)
"""Settings of a namespace for processes or their messages, which the owner of a namespace may change."""
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000


# ---- files ----------------------------------------------------------------------------------------------------------


def write_to_a_file_outside(facts: Facts) -> object:
    return _write(facts["target"])


def make_a_file_outside(facts: Facts) -> object:
    with open(os.path.join(facts["outside"], "made"), "x") as file:
        return file.write("made")


def delete_a_file_outside(facts: Facts) -> object:
    os.unlink(facts["target"])


def write_outside_by_dots(facts: Facts) -> object:
    return _write("../outside/target")


def write_outside_through_a_link_of_its_own(facts: Facts) -> object:
    os.symlink(facts["target"], "mine")
    return _write("mine")


def write_outside_through_a_link_it_found(facts: Facts) -> object:
    return _write("link")


def write_outside_through_a_hard_link(facts: Facts) -> object:
    os.link(facts["target"], "hard")
    return _write("hard")


def move_a_file_outside(facts: Facts) -> object:
    _make("moving")
    os.rename("moving", os.path.join(facts["outside"], "moved"))


def write_in_a_read_only_folder(facts: Facts) -> object:
    return _write(facts["readable_file"])


def write_in_a_read_only_folder_through_proc(facts: Facts) -> object:
    return _write("/proc/self/root" + facts["readable_file"])


def change_the_mode_in_a_read_only_folder(facts: Facts) -> object:
    os.chmod(facts["readable_file"], 0o777)


def write_in_a_read_only_folder_through_an_open_file(facts: Facts) -> object:
    with open(facts["readable_file"]) as file:
        return _write(f"/proc/self/fd/{file.fileno()}")


def write_somewhere_on_the_system(facts: Facts) -> object:
    """Anywhere but in the granted folders and the two scratch folders."""
    import tempfile

    done: list[str] = []
    for folder in ("/", "/dev", "/etc", "/home", "/mnt", "/opt", "/proc", "/root", "/run", "/usr", "/var", "/var/tmp"):
        try:
            with tempfile.NamedTemporaryFile(dir=folder):
                done.append(folder)
        except OSError:
            continue
    return bool(done)


def read_a_file_outside(facts: Facts) -> object:
    return _read(facts["secret"])


def read_outside_through_a_link(facts: Facts) -> object:
    os.symlink(facts["secret"], "peek")
    return _read("peek")


def read_outside_through_the_working_folder_of_proc(facts: Facts) -> object:
    return _read("/proc/self/cwd/../outside/secret")


def read_outside_through_another_process_root(facts: Facts) -> object:
    return _read(f"/proc/{facts['sibling']}/root{facts['secret']}")


def read_outside_through_whatever_a_process_holds(facts: Facts) -> object:
    """Through the root, working folder and open folders of every visible process, including the first."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        ways = [f"/proc/{process}/root{facts['secret']}", f"/proc/{process}/cwd/../outside/secret"]
        try:
            files = os.listdir(f"/proc/{process}/fd")
        except OSError:
            files = []
        for file in files:
            ways += [f"/proc/{process}/fd/{file}{facts['secret']}", f"/proc/{process}/fd/{file}/../outside/secret"]
        for way in ways:
            try:
                return _read(way)
            except OSError:
                continue
    return False


def read_a_key_in_the_home_folder(facts: Facts) -> object:
    return _read(os.path.join(facts["home"], ".ssh", "id_key"))


def read_the_state_folder(facts: Facts) -> object:
    return _read(os.path.join(facts["state"], "key"))


def read_a_hidden_file(facts: Facts) -> object:
    return _read(facts["hidden_file"])


def read_the_state_folder_after_moving_what_holds_it(facts: Facts) -> object:
    os.rename("deep", "shallow")
    return _read("shallow/state/key")


def read_the_state_folder_through_a_hard_link(facts: Facts) -> object:
    os.link("deep/state/key", "key")
    return _read("key")


def read_the_state_folder_by_a_file_handle(facts: Facts) -> object:
    """Get the handle of a file by its path outside; if that is covered, by guessing its inode number."""
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.cast(handle, ctypes.POINTER(ctypes.c_uint))[0] = 128
    mount = ctypes.c_int()
    place = os.fsencode(facts["state"] + "/key")
    if LIBC.name_to_handle_at(-100, place, handle, ctypes.byref(mount), 0) != 0:
        return False
    folder = os.open(".", os.O_RDONLY)
    descriptor = LIBC.open_by_handle_at(folder, handle, os.O_RDONLY)
    return descriptor >= 0 and os.read(descriptor, 100).decode()


def read_the_settings_of_the_machine(facts: Facts) -> object:
    for path in ("/etc/fstab", "/etc/hostname", "/etc/profile", "/etc/shells", "/etc/login.defs", "/etc/shadow"):
        try:
            return bool(_read(path))
        except OSError:
            continue
    return False


def see_the_hardware(facts: Facts) -> object:
    return bool(os.listdir("/sys/devices"))


def change_the_kernel_by_proc(facts: Facts) -> object:
    """Open files below /proc for writing that only their owner may write, except its own; writes nothing."""
    opened: list[str] = []
    for folder, folders, files in os.walk("/proc"):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
        for name in files:
            path = os.path.join(folder, name)
            try:
                mode = os.stat(path).st_mode
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                opened += [path] if mode & 0o202 == 0o200 and not path.startswith(OWN_SETTINGS) else []
            except OSError:
                continue
    return bool(opened)


# ---- environment and descriptors ------------------------------------------------------------------------------


def read_our_environment(facts: Facts) -> object:
    return os.environ.get("RETINUE_TEST_SECRET")


def read_the_environment_of_another_process(facts: Facts) -> object:
    return _read(f"/proc/{facts['sibling']}/environ")


def read_the_command_of_another_process(facts: Facts) -> object:
    return _read(f"/proc/{facts['sibling']}/cmdline")


def read_from_files_that_we_have_open(facts: Facts) -> object:
    found: list[str] = []
    for descriptor in range(3, 256):
        try:
            found.append(os.pread(descriptor, 100, 0).decode("utf-8", "replace"))
        except OSError:
            continue
    return "".join(found)


def find_our_environment_in_memory(facts: Facts) -> object:
    """In its own memory and that of its parent process."""
    import re

    # Split, so that the search does not find itself.
    secret = re.compile(facts["marker"].encode() + rb"[e]cret-of-the-arena")
    for process in (os.getpid(), os.getppid()):
        try:
            with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
                for line in maps:
                    place, rights, *_ = line.split()
                    begin, end = (int(each, 16) for each in place.split("-"))
                    if rights.startswith("rw") and end - begin < 64 * len(MEGABYTE):
                        memory.seek(begin)
                        if secret.search(memory.read(end - begin) or b""):
                            return True
        except OSError:
            continue
    return False


def learn_the_name_of_the_machine(facts: Facts) -> object:
    import socket

    return socket.gethostname() == facts["hostname"]


# ---- other processes ------------------------------------------------------------------------------------------------


def kill_another_process(facts: Facts) -> object:
    import signal

    os.kill(int(facts["sibling"]), signal.SIGKILL)


def trace_another_process(facts: Facts) -> object:
    seize = 0x4206
    return LIBC.ptrace(seize, facts["sibling"], None, None) == 0


def trace_a_child(facts: Facts) -> object:
    child = os.fork()
    if child == 0:
        os._exit(LIBC.ptrace(0, 0, None, None) == 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def read_the_memory_of_another_process(facts: Facts) -> object:
    class Part(ctypes.Structure):
        _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    size = len(facts["marker"])
    here = ctypes.create_string_buffer(size)
    ours, theirs = Part(ctypes.addressof(here), size), Part(facts["address"], size)
    LIBC.process_vm_readv(facts["sibling"], ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    return here.raw.decode("ascii", "replace") == facts["marker"]


def take_a_file_of_another_process(facts: Facts) -> object:
    process = os.pidfd_open(facts["sibling"])
    return LIBC.syscall(438, process, 0, 0) >= 0


def find_another_process_without_limits(facts: Facts) -> object:
    """Look for a process with a higher process limit: a process that can write into it could use that limit."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/limits") as limits:
                (most,) = (line.split()[2] for line in limits if line.startswith("Max processes"))
            os.close(os.open(f"/proc/{process}/mem", os.O_RDWR))
        except OSError:
            continue
        if most == "unlimited" or int(most) >= facts["many"]:
            return True
    return False


def leave_a_daemon_behind(facts: Facts) -> object:
    _daemon()


def leave_a_daemon_behind_when_its_time_is_over(facts: Facts) -> object:
    import signal

    _daemon()
    signal.pause()


# ---- resource limits ------------------------------------------------------------------------------------------


def have_many_processes(facts: Facts) -> object:
    import signal

    children: list[int] = []
    try:
        for _ in range(facts["many"]):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return True


def have_many_threads(facts: Facts) -> object:
    import threading

    enough = threading.Event()
    threading.stack_size(64 * 1024)
    try:
        for _ in range(facts["many"]):
            threading.Thread(target=enough.wait, daemon=True).start()
    except RuntimeError:
        return False
    finally:
        enough.set()
    return True


def have_much_memory(facts: Facts) -> object:
    mmap.mmap(-1, facts["much"], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    return True


def have_much_shared_memory(facts: Facts) -> object:
    mmap.mmap(-1, facts["much"]).close()
    return True


def have_memory_behind_a_descriptor(facts: Facts) -> object:
    return os.memfd_create("hoard") >= 0


def have_memory_that_outlives_it(facts: Facts) -> object:
    segment = LIBC.shmget(0, 4096, 0o1600)
    return segment >= 0 and LIBC.shmctl(segment, 0, None) == 0


def have_much_memory_in_many_processes(facts: Facts) -> object:
    return _together(facts, lambda: b"1" * facts["part"])


def have_much_memory_behind_threads_that_have_ended(facts: Facts) -> object:
    """A process whose first thread has ended reports no memory."""
    import signal
    import threading

    def hoard() -> object:
        filled = threading.Event()
        kept: list[bytes] = []

        def fill() -> None:
            kept.append(b"1" * facts["part"])
            filled.set()
            signal.pause()

        def report() -> None:
            filled.wait()
            os.write(facts["filled"], b"x")
            time.sleep(20)

        threading.Thread(target=fill, daemon=True).start()
        threading.Thread(target=report, daemon=True).start()
        return LIBC.syscall(60 if X86 else 93, 0)

    return _together(facts, hoard)


def have_much_memory_in_sockets(facts: Facts) -> object:
    import socket

    def hoard() -> object:
        pairs = [socket.socketpair() for _ in range(80)]
        for end in (each for pair in pairs for each in pair):
            end.setblocking(False)
            try:
                while True:
                    end.send(MEGABYTE[:65536])
            except BlockingIOError:
                continue
        return pairs

    return _together(facts, hoard)


def have_much_memory_in_empty_files(facts: Facts) -> object:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chdir(folder)
        for number in range(facts["empty_files"]):
            os.mknod(str(number))
        time.sleep(facts["while"])
    return True


def have_much_memory_in_page_tables(facts: Facts) -> object:
    """Single pages so far apart that the kernel needs a page table for each."""
    _declare_maps()
    for number in range(facts["pages"]):
        place = 0x1000000000 + number * 2 * len(MEGABYTE)
        page = LIBC.mmap(place, mmap.PAGESIZE, mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if page == NOT_MAPPED:
            return False
        ctypes.memset(page, 1, 1)
    time.sleep(facts["while"])
    return True


def have_memory_in_rules_of_its_own(facts: Facts) -> object:
    create_ruleset, version = 444, 1
    return _looked_at(LIBC.syscall(create_ruleset, None, 0, version))


def have_memory_that_is_no_longer_mapped(facts: Facts) -> object:
    """Shared memory is kept as a whole while one page of it is mapped, and only that page counts."""
    return _shared_memory(-1, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)


def have_memory_of_a_device_that_is_no_longer_mapped(facts: Facts) -> object:
    return _shared_memory(os.open("/dev/zero", os.O_RDWR), mmap.MAP_SHARED)


def have_memory_in_semaphores(facts: Facts) -> object:
    semaphores = LIBC.semget(0, 250, 0o1600)
    return semaphores >= 0 and LIBC.semctl(semaphores, 0, 0) == 0


def have_memory_in_message_queues(facts: Facts) -> object:
    queue = LIBC.msgget(0, 0o1600)
    return queue >= 0 and LIBC.msgctl(queue, 0, None) == 0


def have_pages_in_a_pipe(facts: Facts) -> object:
    """Pages stay there when they are no longer mapped, and a huge page for a few bytes."""
    page = ctypes.create_string_buffer(4096)
    part = (ctypes.c_size_t * 2)(ctypes.addressof(page), 4096)
    return LIBC.vmsplice(os.pipe()[1], ctypes.byref(part), ctypes.c_size_t(1), 0) == 4096


def have_pages_of_a_file_in_a_pipe(facts: Facts) -> object:
    """Pages stay there when the file is gone."""
    with open(facts["readable_file"]) as file:
        return LIBC.splice(file.fileno(), None, os.pipe()[1], None, ctypes.c_size_t(1), 0) == 1


def have_pages_of_a_file_in_a_pipe_by_sending_it(facts: Facts) -> object:
    with open(facts["readable_file"]) as file:
        return os.sendfile(os.pipe()[1], file.fileno(), 0, 1) == 1


def have_large_buffers_in_a_socket(facts: Facts) -> object:
    import socket

    one, other = socket.socketpair()
    with one, other:
        before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * len(MEGABYTE))
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > before


def have_files_that_only_a_thread_knows(facts: Facts) -> object:
    """The open files of a process are counted; a thread can have others."""
    unshare = 2
    return LIBC.syscall(436, 5000, 5001, unshare) == 0


def take_what_the_whole_machine_has_once(facts: Facts) -> object:
    place = ctypes.c_ulong()
    return LIBC.syscall(206 if X86 else 0, 1, ctypes.byref(place)) == 0


def use_much_processor_time(facts: Facts) -> object:
    while time.process_time() < facts["long"]:
        pass
    return True


def write_a_large_file(facts: Facts) -> object:
    with open("large", "wb") as file:
        for _ in range(3):
            file.write(MEGABYTE)
    return os.path.getsize("large") >= 3 * len(MEGABYTE)


def make_a_large_file_of_nothing(facts: Facts) -> object:
    with open("large", "wb") as file:
        file.truncate(3 * len(MEGABYTE))
    return os.path.getsize("large") >= 3 * len(MEGABYTE)


def fill_the_scratch_folder(facts: Facts) -> object:
    return _fill("/tmp", facts["full"])


def fill_the_shared_memory_folder(facts: Facts) -> object:
    return _fill("/dev/shm", facts["full"])


def let_others_wait_for_a_read_only_file(facts: Facts) -> object:
    """A process that opens the file for writing then waits for the lease to be broken by the kernel."""
    with open(facts["readable_file"]) as file:
        return fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0


# ---- the network ----------------------------------------------------------------------------------------------------


def reach_a_port_of_this_machine(facts: Facts) -> object:
    import socket

    _connect(socket.AF_INET, ("127.0.0.1", facts["port"]))


def send_a_datagram_to_this_machine(facts: Facts) -> object:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.sendto(b"hello", ("127.0.0.1", facts["udp_port"]))


def reach_the_world(facts: Facts) -> object:
    """A documentation address: a route to it is enough, nothing is sent."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect(("198.51.100.1", 9))
        return line.getsockname()[0] != "0.0.0.0"


def see_the_interfaces_of_the_machine(facts: Facts) -> object:
    import socket

    return any(name != "lo" for _, name in socket.if_nameindex())


def reach_an_abstract_socket(facts: Facts) -> object:
    import socket

    _connect(socket.AF_UNIX, "\0" + facts["abstract"])


def reach_a_socket_in_a_read_only_folder(facts: Facts) -> object:
    import socket

    _connect(socket.AF_UNIX, facts["socket"])


def send_a_datagram_to_a_socket_in_a_folder(facts: Facts) -> object:
    import socket

    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"hello", facts["datagrams"])


def reach_the_host_of_a_virtual_machine(facts: Facts) -> object:
    import socket

    vsock = 40
    with socket.socket(vsock, socket.SOCK_STREAM):
        return True


# ---- the kernel -----------------------------------------------------------------------------------------------------


def use_io_uring(facts: Facts) -> object:
    return _looked_at(LIBC.syscall(425, 1, None))


def use_a_keyring(facts: Facts) -> object:
    return _looked_at(LIBC.syscall(250 if X86 else 219, 0, -4, 1))


def leave_a_key_in_a_keyring(facts: Facts) -> object:
    key = LIBC.syscall(248 if X86 else 217, b"user", b"retinue-test", b"x", 1, -2)
    return key >= 0


def make_namespaces_by_unshare(facts: Facts) -> object:
    return _in_a_child(lambda: LIBC.unshare(NEW_USER | NEW_MOUNTS) == 0)


def mount_in_namespaces_of_its_own(facts: Facts) -> object:
    def mounts() -> bool:
        os.makedirs("mounted", exist_ok=True)
        return LIBC.unshare(NEW_USER | NEW_MOUNTS) == 0 and LIBC.mount(b"none", b"mounted", b"tmpfs", 0, None) == 0

    return _in_a_child(mounts)


def make_namespaces_by_clone(facts: Facts) -> object:
    import signal

    child = LIBC.syscall(56 if X86 else 220, NEW_USER | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return child > 0 and bool(os.waitpid(child, 0))


def make_namespaces_by_clone3(facts: Facts) -> object:
    import signal

    arguments = (ctypes.c_uint64 * 8)(NEW_USER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    child = LIBC.syscall(435, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if child == 0:
        os._exit(0)
    return child > 0 and bool(os.waitpid(child, 0))


def enter_namespaces(facts: Facts) -> object:
    """With a descriptor that is no namespace: a kernel that handles the call reports that and changes nothing."""
    with open(os.devnull) as nothing:
        return _looked_at(LIBC.setns(nothing.fileno(), 0))


def use_the_new_mount_calls(facts: Facts) -> object:
    return LIBC.syscall(428, -100, b"/", 0) >= 0


def stop_the_kernel_at_a_page(facts: Facts) -> object:
    return LIBC.syscall(323 if X86 else 282, 1) >= 0


def change_how_a_terminal_speaks(facts: Facts) -> object:
    """To the current line discipline: others are kernel modules that are loaded on demand."""
    set_discipline, usual = 0x5423, ctypes.c_int(0)
    _, terminal = os.openpty()
    return LIBC.ioctl(terminal, ctypes.c_ulong(set_discipline), ctypes.byref(usual)) == 0


def watch_the_processor(facts: Facts) -> object:
    return _looked_at(LIBC.syscall(298 if X86 else 241, None, 0, -1, -1, 0))


def compare_processes_in_the_kernel(facts: Facts) -> object:
    return LIBC.syscall(312 if X86 else 272, os.getpid(), os.getpid(), 0, 0, 0) == 0


def call_the_kernel_as_a_32_bit_program(facts: Facts) -> object:
    """`int 0x80` with number 20, which is getpid in the 32-bit ABI."""
    code = bytes.fromhex("b814000000cd80c3")
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return call() == os.getpid()


def call_the_kernel_by_x32_numbers(facts: Facts) -> object:
    """A call with the x32 bit: a kernel without that ABI reports that, but it must not be reached at all."""
    LIBC.syscall(0x40000000 + 39)
    return True


# ---- privileges ---------------------------------------------------------------------------------------------------


def run_a_set_uid_program(facts: Facts) -> object:
    import subprocess

    return subprocess.run([facts["set_uid"], "-u"], capture_output=True, text=True).stdout.strip() == "0"


def leave_a_set_uid_program_behind(facts: Facts) -> object:
    _make("tool")
    os.chmod("tool", 0o4755)
    return bool(os.stat("tool").st_mode & stat.S_ISUID)


def make_a_file_with_the_set_uid_bit(facts: Facts) -> object:
    os.close(os.open("tool", os.O_CREAT | os.O_WRONLY, 0o4755))
    return bool(os.stat("tool").st_mode & stat.S_ISUID)


def leave_a_file_behind_that_only_root_can_make(facts: Facts) -> object:
    """A file of another owner, a set-id file, and a device."""
    _make("tool")
    rights = bytes.fromhex("0100000200200000000000000000000000000000")
    ways: list[Callable[[], None]] = [
        lambda: os.chown("tool", 54322, 54322),
        lambda: os.setxattr("tool", "security.capability", rights),
        lambda: os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 3)),
    ]
    done = 0
    for way in ways:
        try:
            way()
            done += 1
        except OSError:
            continue
    return done > 0


ATTEMPTS: dict[str, Attempt] = {
    name: each
    for name, each in list(globals().items())
    if callable(each) and getattr(each, "__module__", "") == __name__ and not name.startswith("_") and name != "main"
}


# ---- helpers -------------------------------------------------------------------------------------------------


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")


def _write(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(b"spoiled")


def _make(path: str) -> None:
    with open(path, "x"):
        pass


def _fill(folder: str, megabytes: int) -> bool:
    import tempfile

    with tempfile.TemporaryDirectory(dir=folder) as own:
        for number in range(megabytes):
            with open(os.path.join(own, str(number)), "wb") as file:
                file.write(MEGABYTE)
    return True


def _together(facts: Facts, hoard: Callable[[], object]) -> bool:
    """Whether several processes can each hold what `hoard` takes, at the same time."""
    import signal

    reading, facts["filled"] = os.pipe()
    children: list[int] = []
    try:
        for _ in range(facts["together"]):
            child = os.fork()
            if child == 0:
                kept = hoard()
                os.write(facts["filled"], b"x")
                time.sleep(20)
                os._exit(bool(kept))
            children.append(child)
        for _ in children:
            os.read(reading, 1)
        time.sleep(facts["while"])
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    return True


def _declare_maps() -> None:
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _shared_memory(file: int, flags: int) -> bool:
    size = len(MEGABYTE)
    _declare_maps()
    place = LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
    if place == NOT_MAPPED:
        return False
    ctypes.memset(place, 1, size)
    return LIBC.munmap(place + mmap.PAGESIZE, size - mmap.PAGESIZE) == 0


def _connect(family: int, address: str | tuple[str, int]) -> None:
    import socket

    with socket.socket(family) as line:
        line.settimeout(2)
        line.connect(address)


def _daemon() -> None:
    """A daemon in a session of its own that holds a lock as long as it runs."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            lock = os.open("lock", os.O_RDWR)
            fcntl.flock(lock, fcntl.LOCK_EX)
            _note("daemon")
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            os.write(writing, b"x")
            os.close(writing)
            time.sleep(20)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)


def _note(name: str) -> None:
    with open(name, "w") as file:
        file.write(str(os.getpid()))


def _in_a_child(does: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(does())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def _looked_at(result: int) -> bool:
    """Whether the kernel handled the call at all."""
    return result >= 0 or ctypes.get_errno() not in (EPERM, ENOSYS)


def main() -> None:
    name, facts = sys.argv[1], eval(sys.argv[2], {})
    got = ATTEMPTS[name](facts)
    if got is True:
        print("GOT OUT")
    elif isinstance(got, str):
        print(got)


if __name__ == "__main__":
    main()
