"""Reads every byte of a stopped broker's queue logs, sharing no code with the broker.

    decode.py DATA_DIR [EXPECTED.json]

Checks, file by file: header, record lengths and checksums, entry bytes and their checksum, stubs against
their whole record, every part of an entry present in as many logs as it says, frames, transactionId hashes,
zstd frames, retained lengths, gapless offsets, .qidx and .qhsh. With the second argument, what was pushed is
compared with what was read. Prints one line of counts, then `N passed, M failed`.
"""

import json
import os
import random
import re
import struct
import sys
import tempfile
from collections import defaultdict

import xxhash
import zstandard

FILE_MAGIC = b"QNQLOG1\0"
INDEX_MAGIC = b"QQIDX1\0\0"
HASHES_MAGIC = b"QQHSH1\0\0"
FILES_MAGIC = b"QNQFILES"
UNUSED = 0xFFFF_FFFF_FFFF_FFFF
BODY_MAX = 256 << 20
MESSAGE, ENTRY, STUB = 0, 2, 3
COMPRESSED = 0x80
DEFAULT_TENANT = "00000000-0000-0000-0000-000000000001"


class Damage(Exception):
    """Bytes that are not what the format says."""


def need(condition, text):
    if not condition:
        raise Damage(text)


class Reader:
    """Takes little-endian fields off a bytes object and refuses to read past its end."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        need(self.at + length <= len(self.data), f"{length} bytes wanted, {len(self.data) - self.at} left")
        part = self.data[self.at : self.at + length]
        self.at += length
        return part

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def u8(self):
        return self.number("B")

    def u16(self):
        return self.number("H")

    def u32(self):
        return self.number("I")

    def u64(self):
        return self.number("Q")

    def i64(self):
        return self.number("q")

    def blob(self):
        return self.take(self.u32())

    def text(self):
        return self.blob().decode("utf-8")

    def end(self, what):
        need(self.at == len(self.data), f"{what}: {len(self.data) - self.at} bytes too many")


class Record:
    """One record of a log file."""

    def __init__(self, data, at, length):
        body = data[at + 12 : at + 4 + length]
        (stored,) = struct.unpack_from("<Q", data, at + 4)
        need(xxhash.xxh3_64_intdigest(body) == stored, f"checksum of the record at {at}")
        fields = struct.unpack_from("<QQQIqB", body)
        self.seq, self.pid, self.base, self.count, self.created, kind = fields
        self.at, self.length = at, 4 + length
        self.kind, self.is_compressed = kind & 0x7F, bool(kind & COMPRESSED)
        need(self.kind in (MESSAGE, ENTRY, STUB), f"kind {kind} at {at}")
        need(self.kind == MESSAGE or not self.is_compressed, f"a compressed entry at {at}")
        need(45 + 16 * self.count <= length, f"{self.count} hashes do not fit at {at}")
        self.hashes = body[37 : 37 + 16 * self.count]
        self.payload = body[37 + 16 * self.count :]

    def messages(self):
        """The frames of a message record, decompressed, each checked against its hash."""
        raw = self.payload
        if self.is_compressed:
            size = zstandard.frame_content_size(raw)
            need(0 <= size <= BODY_MAX, f"zstd frame without its size at {self.at}")
            raw = zstandard.ZstdDecompressor().decompress(raw, max_output_size=size)
            need(len(raw) == size, f"zstd content size at {self.at}")
            need(size >= 512 and 10 * len(self.payload) <= 9 * size, f"compression not worth it at {self.at}")
        reader, messages = Reader(raw), []
        for number in range(self.count):
            frame = Reader(reader.take(reader.u32()))
            flags = frame.u8()
            need(flags & ~7 == 0, f"frame flags {flags} at {self.at}")
            message_id = frame.take(16)
            need(message_id[6] >> 4 == 7, f"message id of no version 7 at {self.at}")
            trace = frame.take(16) if flags & 1 else None
            transaction = frame.take(frame.u16())
            subject = frame.take(frame.u16()) if flags & 2 else None
            data = frame.take(len(frame.data) - frame.at)
            digest = self.hashes[16 * number : 16 * number + 16]
            need(xxhash.xxh3_128_digest(transaction) == digest, f"hash {number} at {self.at}")
            messages.append((transaction.decode("utf-8"), data, message_id, trace, subject))
        reader.end(f"frames at {self.at}")
        return messages, len(raw)


def read_file(path):
    """The records of one .qlog file, and the length of what was written."""
    with open(path, "rb") as file:
        data = file.read()
    need(len(data) >= 32, f"{path}: shorter than a header")
    need(data[:8] == FILE_MAGIC, f"{path}: magic")
    file_id, first_seq, reserved = struct.unpack_from("<QQQ", data, 8)
    need(file_id == int(os.path.basename(path)[1:9]), f"{path}: file id {file_id}")
    need(reserved == 0, f"{path}: reserved bytes")
    if first_seq == UNUSED:
        need(len(data) == 32, f"{path}: an unused file with records")
        return [], 32
    records, at = [], 32
    while at < len(data):
        need(at + 4 <= len(data), f"{path}: {len(data) - at} bytes at the end")
        (length,) = struct.unpack_from("<I", data, at)
        if length == 0:
            need(not any(data[at:]), f"{path}: something after the zero tail at {at}")
            break
        need(45 <= length <= BODY_MAX and at + 4 + length <= len(data), f"{path}: length {length} at {at}")
        try:
            records.append(Record(data, at, length))
        except Damage as damage:
            raise Damage(f"{path}: {damage}") from None
        at += 4 + length
    if records:
        need(records[0].seq >= first_seq, f"{path}: first seq {first_seq}, found {records[0].seq}")
    return records, at


def side_body(path, magic, log_length, file_id, record_length):
    """The records of a side file whose header agrees with its log file, and their number."""
    with open(path, "rb") as file:
        data = file.read()
    need(data[:8] == magic, f"{path}: magic")
    found_id, count, width, length, body_sum, head_sum = struct.unpack_from("<QIIQQQ", data, 8)
    need(xxhash.xxh3_64_intdigest(data[:40]) == head_sum, f"{path}: header checksum")
    need(xxhash.xxh3_64_intdigest(data[48:]) == body_sum, f"{path}: body checksum")
    need((found_id, width, length) == (file_id, record_length, log_length), f"{path}: of another file")
    return data[48:], count


def check_index(path, records, log_length, file_id):
    body, count = side_body(path, INDEX_MAGIC, log_length, file_id, 48)
    wanted = sorted((r.pid, r.base, r.base + r.count, r.created, r.at, r.count, r.length) for r in records)
    found = [struct.unpack_from("<QQQqQII", body, 48 * n) for n in range(count)]
    need(len(body) == 48 * count, f"{path}: length")
    need(found == wanted, f"{path}: {len(found)} records, {len(wanted)} in the file, or other values")


def check_hashes(path, records, log_length, file_id):
    body, count = side_body(path, HASHES_MAGIC, log_length, file_id, 0)
    wanted = sorted((r.pid, r.base, r.created, r.count, r.hashes) for r in records)
    reader, found = Reader(body), []
    for _ in range(count):
        head = reader.u64(), reader.u64(), reader.i64(), reader.u32()
        need(reader.u32() == 0, f"{path}: reserved bytes")
        found.append((*head, reader.take(16 * head[3])))
    reader.end(path)
    need(found == wanted, f"{path}: {len(found)} records, {len(wanted)} in the file, or other values")


def read_entry(data):
    """The effects of an entry, as (kind, version, body), and its fields that matter here."""
    head = Reader(data)
    length, stored = head.u32(), head.u64()
    body = head.take(length)
    head.end("entry")
    need(xxhash.xxh3_64_intdigest(body) == stored, "entry checksum")
    reader = Reader(body)
    need(reader.u16() == 1, "entry format")
    reader.u32()
    now, pid_base = reader.i64(), reader.u64()
    reader.u64()
    covered, requests = 0, set()
    for _ in range(reader.u32()):
        requests_before = len(requests)
        requests.add(reader.take(16))
        need(len(requests) > requests_before, "one request id twice in an entry")
        first, count = reader.u32(), reader.u32()
        need(first == covered and count > 0, "commands that do not cover the effects in order")
        covered += count
        reader.u16()
        reader.u16()
        reader.blob()
    effects = []
    for _ in range(reader.u32()):
        kind, version = reader.u16(), reader.u16()
        effects.append((kind, version, reader.blob()))
    reader.end("entry body")
    need(covered in (0, len(effects)), "effects of no command")
    return effects, now, pid_base


class Directory:
    """Everything that the queue logs of a data directory hold."""

    def __init__(self, path):
        self.path = path
        self.files = self.indexes = self.hash_files = self.compressed = self.stubs = self.records = 0
        self.parts = defaultdict(list)  # seq -> [(log, record)]
        self.appends = defaultdict(dict)  # pid -> base -> record
        self.sealed = {}  # path without its ending -> records, length
        self.log_of = {}  # pid -> log
        self.names = {}  # pid -> (queue, partition)
        self.messages = {}  # (queue, partition) -> [(transaction, data, id)]
        self.checks = []
        self.layout()
        logs = [name for name in os.listdir(self.qlog) if re.fullmatch(r"q\d+", name)]
        others = set(os.listdir(self.qlog)) - set(logs) - {"LANES", "SHARDS", "FILES", "RECLAIMED"}
        need(not others, f"unknown in qlog: {sorted(others)}")
        self.inventory()
        for log in sorted(logs):
            self.read_log(log)

    def layout(self):
        self.qlog = os.path.join(self.path, "qlog")
        self.lanes, self.shards = self.number("LANES"), self.number("SHARDS")
        need(self.lanes and 1 <= self.lanes <= 64, f"LANES {self.lanes}")

    def inventory(self):
        """The record of the newest files: what it names is there, at least as long."""
        path = os.path.join(self.qlog, "FILES")
        if not os.path.exists(path):
            return
        with open(path, "rb") as file:
            data = file.read()
        need(data[:8] == FILES_MAGIC, "FILES: magic")
        need(xxhash.xxh3_64_intdigest(data[:-8]) == int.from_bytes(data[-8:], "little"), "FILES: checksum")
        reader = Reader(data[8:-8])
        whole, logs = reader.u8(), reader.varint()
        need(whole in (0, 1) and (whole or not logs), "FILES: a list although something was reclaimed")
        for _ in range(logs):
            log, number, length = reader.u64(), reader.varint(), reader.varint()
            newest = os.path.join(self.qlog, f"q{log}", f"r{number:08}.qlog")
            need(os.path.getsize(newest) >= length, f"FILES: {newest} has fewer than {length} bytes")
        reader.end("FILES")

    def number(self, name):
        path = os.path.join(self.qlog, name)
        if not os.path.exists(path):
            return 0
        with open(path, encoding="ascii") as file:
            text = file.read()
        need(re.fullmatch(r"[1-9]\d*\n", text), f"{name}: {text!r}")
        return int(text)

    def read_log(self, log):
        place = os.path.join(self.qlog, log)
        names = sorted(os.listdir(place))
        seq = 0
        for name in names:
            need(re.fullmatch(r"r\d{8}\.(qlog|qidx|qhsh)", name), f"unknown in {log}: {name}")
        numbers = [int(name[1:9]) for name in names if name.endswith(".qlog")]
        need(numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"{log}: a file is missing: {numbers}")
        for number in numbers:
            stem = os.path.join(place, f"r{number:08}")
            records, length = read_file(stem + ".qlog")
            self.files += 1
            for record in records:
                need(record.seq >= seq, f"{stem}: seq {record.seq} after {seq}")
                seq = record.seq
                self.parts[seq].append((log, record))
            appends = [record for record in records if record.kind == MESSAGE]
            for record in appends:
                need(record.base not in self.appends[record.pid], f"{stem}: partition {record.pid} twice")
                self.appends[record.pid][record.base] = record
                need(self.log_of.setdefault(record.pid, log) == log, f"partition {record.pid} in two logs")
            self.records += len(records)
            if os.path.exists(stem + ".qidx"):
                check_index(stem + ".qidx", appends, length, number)
                self.indexes += 1
            if os.path.exists(stem + ".qhsh"):
                check_hashes(stem + ".qhsh", appends, length, number)
                self.hash_files += 1
                self.sealed[stem] = records, length

    # The checks, each one line of the report.

    def check_entries(self):
        """Every entry is whole: one full record, stubs that name it, present in all its logs."""
        seqs = sorted(self.parts)
        need(seqs == list(range(seqs[0], seqs[0] + len(seqs))), "the entry indexes have a gap")
        now_before = 0
        for seq in seqs:
            parts = self.parts[seq]
            marks = [(log, record) for log, record in parts if record.kind != MESSAGE]
            whole = [(log, record) for log, record in marks if record.kind == ENTRY]
            need(len(whole) == 1, f"entry {seq}: {len(whole)} whole records")
            log, entry = whole[0]
            logs = {int(name[1:]) for name, _ in marks}
            need(len(logs) == len(marks) == max(1, entry.pid), f"entry {seq}: in {len(marks)} logs of {entry.pid}")
            need(int(log[1:]) == min(logs), f"entry {seq}: the whole record is not in the lowest log")
            for _, stub in marks:
                need((stub.pid, stub.base, stub.count) == (entry.pid, entry.base, 0), f"entry {seq}: slots")
                need(stub.created == entry.created, f"entry {seq}: time of a copy")
                if stub.kind == STUB:
                    wanted = struct.pack("<QI", xxhash.xxh3_64_intdigest(entry.payload), len(entry.payload))
                    need(stub.payload == wanted and stub.length == 61, f"entry {seq}: a stub of other bytes")
                    self.stubs += 1
            try:
                effects, now, pid_base = read_entry(entry.payload)
            except Damage as damage:
                raise Damage(f"entry {seq}: {damage}") from None
            need(now == entry.created and now > now_before, f"entry {seq}: time {now} after {now_before}")
            now_before = now
            self.check_effects(seq, parts, effects, pid_base)

    def check_effects(self, seq, parts, effects, pid_base):
        messages = {(r.pid, r.base): (log, r) for log, r in parts if r.kind == MESSAGE}
        order, made = defaultdict(list), 0
        for kind, _, body in effects:
            reader = Reader(body)
            if kind == 5:
                pid = reader.u64()
                need(pid == pid_base + made, f"entry {seq}: partition {pid}, {pid_base + made} was due")
                made += 1
                reader.take(16)
                need(reader.text() == DEFAULT_TENANT, f"entry {seq}: tenant")
                self.names[pid] = reader.text(), reader.text()
                reader.i64()
                reader.end("partition")
            elif kind == 7:
                pid, _, base, count = reader.u64(), reader.u16(), reader.u64(), reader.u32()
                created, hashes, retained = reader.i64(), reader.blob(), Reader(reader.blob())
                reader.end("append")
                need((pid, base) in messages, f"entry {seq}: no record of partition {pid} from {base}")
                log, record = messages.pop((pid, base))
                need((record.count, record.created) == (count, created), f"entry {seq}: count or time")
                need(record.hashes == hashes, f"entry {seq}: hashes of partition {pid}")
                raw = record.messages()[1]
                need(retained.u32() == 40 + 16 * count + raw, f"entry {seq}: retained length")
                retained.end("retained length")
                order[log].append(record.at)
        need(not messages, f"entry {seq}: messages that no effect names")
        for log, places in order.items():
            need(places == sorted(places), f"entry {seq}: records of {log} in another order than the effects")

    def check_routes(self):
        """Every partition's messages lie in the log that the layout says."""
        for pid, log in self.log_of.items():
            queue = self.names[pid][0]
            key = f"{DEFAULT_TENANT}\x1f{queue}".encode()
            queue_id = xxhash.xxh3_64_intdigest(key) or 1
            if self.shards:
                wanted = 2 + queue_id % self.shards
            elif pid % self.lanes == 0:
                wanted = queue_id
            else:
                lane = struct.pack("<QQ", queue_id, pid % self.lanes)
                wanted = xxhash.xxh3_64_intdigest(lane) or 1
            need(log == f"q{wanted}", f"partition {pid} of {queue} is in {log}, not in q{wanted}")

    def check_offsets(self):
        """Offsets rise without a gap, and so do the times of the appends."""
        for pid, appends in self.appends.items():
            due, created, messages = 0, 0, []
            for base in sorted(appends):
                record = appends[base]
                need(base == due, f"partition {pid}: offset {base}, {due} was due")
                need(record.created > created, f"partition {pid}: time {record.created} at offset {base}")
                due, created = base + record.count, record.created
                self.compressed += record.is_compressed
                messages += record.messages()[0]
            ids = [message[2] for message in messages]
            need(ids == sorted(set(ids)), f"partition {pid}: message ids do not rise")
            transactions = {message[0] for message in messages}
            need(len(transactions) == len(messages), f"partition {pid}: a transactionId twice")
            self.messages[self.names[pid]] = messages

    def check_counts(self, expected):
        """As many messages, partitions and queues as were acknowledged."""
        wanted = {name: len(rows) for name, rows in expected.items()}
        found = {name: len(rows) for name, rows in self.messages.items()}
        need(found == wanted, f"{sum(found.values())} messages found, {sum(wanted.values())} pushed")

    def check_payloads(self, expected):
        """Every transactionId and payload, byte for byte, at its answered offset, with its answered id."""
        for name, rows in expected.items():
            found = [(t, data.decode("utf-8"), message.hex()) for t, data, message, _, _ in self.messages[name]]
            need(found == rows, f"{name}: other messages than pushed")

    def check_bites(self):
        """One changed bit anywhere in a record or a side file is noticed."""
        dice = random.Random(len(self.messages))
        with tempfile.TemporaryDirectory() as place:
            for stem, (records, length) in self.sealed.items():
                appends = [record for record in records if record.kind == MESSAGE]
                name = os.path.basename(stem)
                number = int(name[1:])
                readers = {
                    ".qlog": (32, length, read_file),
                    ".qidx": (0, None, lambda path: check_index(path, appends, length, number)),
                    ".qhsh": (0, None, lambda path: check_hashes(path, appends, length, number)),
                }
                for suffix, (start, end, read) in readers.items():
                    with open(stem + suffix, "rb") as file:
                        data = bytearray(file.read())
                    at, bit = dice.randrange(start, end or len(data)), dice.randrange(8)
                    data[at] ^= 1 << bit
                    path = os.path.join(place, name + suffix)
                    with open(path, "wb") as file:
                        file.write(data)
                    try:
                        read(path)
                    except Damage:
                        continue
                    raise Damage(f"{stem}{suffix}: bit {bit} of byte {at} was changed and nobody noticed")

    def check_side_files(self):
        """Every file that is not the newest of its log has both side files."""
        need(self.indexes > 0 and self.indexes == self.hash_files, f"{self.indexes} .qidx, {self.hash_files} .qhsh")

    def check_compression(self):
        """Payloads of 512 bytes and more that shrink were compressed."""
        need(self.compressed > 0, "nothing is compressed")

    def check_copies(self):
        """Entries over several logs were met."""
        need(self.stubs > 0, "no entry has a stub")


def load_expected(path):
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    return {(queue, partition): [tuple(row) for row in found] for queue, partition, found in rows}


def main(arguments):
    failed = passed = 0

    def check(name, call, *values):
        nonlocal failed, passed
        try:
            call(*values)
            passed += 1
        except Damage as damage:
            failed += 1
            print(f"FAILED {name}: {damage}")

    try:
        directory = Directory(arguments[0])
        passed += 1
    except Damage as damage:
        print(f"FAILED reading: {damage}")
        print("0 passed, 1 failed")
        return 1
    check("entries", directory.check_entries)
    check("routes", directory.check_routes)
    check("offsets", directory.check_offsets)
    if len(arguments) > 1 and not failed:
        expected = load_expected(arguments[1])
        check("counts", directory.check_counts, expected)
        check("payloads", directory.check_payloads, expected)
        check("side files", directory.check_side_files)
        check("damage", directory.check_bites)
        check("compression", directory.check_compression)
        check("copies", directory.check_copies)
    messages = sum(len(rows) for rows in directory.messages.values())
    print(
        f"{directory.files} files, {directory.records} records, {len(directory.parts)} entries, "
        f"{directory.stubs} stubs, {directory.compressed} compressed, {directory.indexes} .qidx, "
        f"{directory.hash_files} .qhsh, {len(directory.messages)} partitions, {messages} messages"
    )
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
