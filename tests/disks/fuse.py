"""A file system in the memory of this process, as slow and as broken as a test asks for.

    python fuse.py MOUNT_POINT DELAY_S FAULT_FILE

It answers the kernel's FUSE requests one after the other, as a single server of a network
file system would. Each change (write, create, rename, ...) takes DELAY_S. While FAULT_FILE
exists, changes fail with the error that it names, or wait if it says ``hang``;
FAULT_FILE.hit is made when that has happened. The protocol is that of linux/fuse.h, 7.31.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
import time
from pathlib import Path

HEAD = struct.Struct("<IIQQIIII")
ANSWER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<QQQQQQ10I")
LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, RMDIR, RENAME = 1, 2, 3, 4, 9, 10, 11, 12
OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT = 14, 15, 16, 17, 18, 20, 25, 26
OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, ACCESS, CREATE = 27, 28, 29, 30, 34, 35
INTERRUPT, DESTROY, BATCH_FORGET, RENAME2 = 36, 38, 42, 45
CHANGES = {SETATTR, MKDIR, UNLINK, RMDIR, RENAME, RENAME2, WRITE, FSYNC, CREATE}
UNANSWERED = {FORGET, INTERRUPT, BATCH_FORGET}
NOTHING_TO_DO = {RELEASE, FSYNC, FLUSH, RELEASEDIR, FSYNCDIR, ACCESS, DESTROY}
ROOT = 1
BLOCK = 4096
MODE, SIZE = 1, 8
"""Bits of what SETATTR sets."""
LARGEST_REQUEST = 1 << 21


class Node:
    """A file or a directory."""

    def __init__(self, number, mode):
        self.number = number
        self.mode = mode
        self.data = bytearray()
        self.entries = {}
        self.time_s = int(time.time())

    def attributes(self):
        """Return it as the kernel's fuse_attr."""
        size, links = len(self.data), 2 if stat.S_ISDIR(self.mode) else 1
        blocks = -(-size // 512)
        times = (self.time_s, self.time_s, self.time_s)
        owner = (os.getuid(), os.getgid())
        return ATTRIBUTES.pack(
            self.number, size, blocks, *times, 0, 0, 0, self.mode, links, *owner, 0, BLOCK, 0
        )

    def entry(self):
        """Return it as the kernel's fuse_entry_out."""
        return struct.pack("<QQQQII", self.number, 0, 1, 1, 0, 0) + self.attributes()

    def opened(self):
        """Return it as the kernel's fuse_open_out."""
        return struct.pack("<QII", self.number, 0, 0)


class Server:
    """Answers the requests of one mount."""

    def __init__(self, device, delay_s, fault):
        self.device = device
        self.delay_s = delay_s
        self.fault = fault
        self.nodes = {ROOT: Node(ROOT, stat.S_IFDIR | 0o700)}

    def serve(self):
        """Answer until the file system is unmounted."""
        while True:
            try:
                request = os.read(self.device, LARGEST_REQUEST)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                raise
            length, code, unique, number, *_ = HEAD.unpack_from(request)
            if code in UNANSWERED:
                continue
            try:
                if code in CHANGES:
                    self.disturb()
                failed, answer = 0, self.answer(code, number, request[HEAD.size : length])
            except OSError as error:
                failed, answer = error.errno, b""
            self.send(ANSWER.pack(ANSWER.size + len(answer), -failed, unique) + answer)

    def send(self, answer):
        """Give an answer, unless who asked is gone."""
        try:
            os.write(self.device, answer)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def disturb(self):
        """Be slow, hang or fail, as the test asks for."""
        time.sleep(self.delay_s)
        while (fault := self.wanted_fault()) == "hang":
            time.sleep(0.01)
        if fault:
            raise OSError(getattr(errno, fault), fault)

    def wanted_fault(self):
        """Return what the fault file says, and note that it was heard."""
        try:
            fault = self.fault.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return ""
        if fault:
            self.fault.with_suffix(".hit").touch()
        return fault

    def answer(self, code, number, body):
        """Do what is asked; return the body of the answer."""
        if code in NOTHING_TO_DO:
            return b""
        if code == INIT:
            ahead, flags = struct.unpack_from("<II", body, 8)
            big_writes = flags & 1 << 5
            return struct.pack(
                "<IIIIHHIIHH7I", 7, 31, ahead, big_writes, 12, 10, 1 << 20, 1, 256, 0, *[0] * 7
            )
        if code == STATFS:
            return struct.pack(
                "<5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, BLOCK, 255, BLOCK, 0
            )
        handler = HANDLERS.get(code)
        if handler is None:
            raise OSError(errno.ENOSYS, "not offered")
        return handler(self, self.nodes[number], body)

    def make(self, parent, name, mode):
        """Add a file or directory."""
        node = Node(max(self.nodes) + 1, mode)
        self.nodes[node.number] = node
        parent.entries[name] = node.number
        return node


def look_up(server, node, body):
    """Find a name in a directory."""
    number = node.entries.get(body.rstrip(b"\0"))
    if number is None:
        raise OSError(errno.ENOENT, "no such name")
    return server.nodes[number].entry()


def get_attributes(server, node, body):
    """Tell size, mode and times."""
    return struct.pack("<QII", 1, 0, 0) + node.attributes()


def set_attributes(server, node, body):
    """Change mode or size."""
    wanted, size, mode = *struct.unpack_from("<I12xQ", body), *struct.unpack_from("<I", body, 68)
    if wanted & MODE:
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
    if wanted & SIZE:
        del node.data[size:]
        node.data.extend(bytes(size - len(node.data)))
    return get_attributes(server, node, body)


def make_directory(server, node, body):
    """Make a directory."""
    (mode,) = struct.unpack_from("<I", body)
    return server.make(node, body[8:].rstrip(b"\0"), stat.S_IFDIR | stat.S_IMODE(mode)).entry()


def create(server, node, body):
    """Make a file and open it."""
    _, mode = struct.unpack_from("<II", body)
    made = server.make(node, body[16:].rstrip(b"\0"), stat.S_IFREG | stat.S_IMODE(mode))
    return made.entry() + made.opened()


def remove(server, node, body):
    """Take a name away; who has the file open keeps it."""
    if node.entries.pop(body.rstrip(b"\0"), None) is None:
        raise OSError(errno.ENOENT, "no such name")
    return b""


def rename(server, node, body, names_at=8):
    """Give a file another name, over one that has it."""
    (target,) = struct.unpack_from("<Q", body)
    before, after = body[names_at:].split(b"\0")[:2]
    server.nodes[target].entries[after] = node.entries.pop(before)
    return b""


def open_node(server, node, body):
    """Open a file or directory."""
    return node.opened()


def read(server, node, body):
    """Return a part of a file."""
    offset, size = struct.unpack_from("<8xQI", body)
    return bytes(node.data[offset : offset + size])


def write(server, node, body):
    """Replace a part of a file."""
    offset, size = struct.unpack_from("<8xQI", body)
    node.data.extend(bytes(max(offset + size - len(node.data), 0)))
    node.data[offset : offset + size] = body[40 : 40 + size]
    return struct.pack("<II", size, 0)


def read_directory(server, node, body):
    """Return the names in a directory from a position on, as many as fit."""
    offset, size = struct.unpack_from("<8xQI", body)
    listed = b""
    for place, (name, number) in enumerate(node.entries.items()):
        kind = server.nodes[number].mode >> 12
        entry = struct.pack("<QQII", number, place + 1, len(name), kind) + name
        entry += bytes(-len(entry) % 8)
        if place >= offset and len(listed) + len(entry) <= size:
            listed += entry
    return listed


HANDLERS = {
    LOOKUP: look_up,
    GETATTR: get_attributes,
    SETATTR: set_attributes,
    MKDIR: make_directory,
    CREATE: create,
    UNLINK: remove,
    RMDIR: remove,
    RENAME: rename,
    RENAME2: lambda server, node, body: rename(server, node, body, names_at=16),
    OPEN: open_node,
    OPENDIR: open_node,
    READ: read,
    WRITE: write,
    READDIR: read_directory,
}


def main(mount_point, delay_s, fault):
    """Mount and serve."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"odd", mount_point.encode(), b"fuse.odd", 0, options.encode()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), mount_point)
    Server(device, float(delay_s), Path(fault)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
