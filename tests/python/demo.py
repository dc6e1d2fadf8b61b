"""One role of the demo, on the published client: `push`, or `consume GROUP`.

    demo.py push    URL LINES.jsonl
    demo.py consume URL LINES.jsonl GROUP

Queue `flights`; the partition is the aircraft, the transactionId names the departure, the payload is the line.
Progress goes to standard output as `at N`, the result as one line of JSON. Both roles live through a broker that
is killed and started again.
"""

import asyncio
import json
import sys
import time
from collections import defaultdict

from queen import Queen

QUEUE = "flights"
LANES = 16
WORKERS = 4
AGAIN = 1000


def load(path):
    """(aircraft, transactionId, payload) per line, in the file's order."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            flight = json.loads(line)
            parts = ("carrier", "flight", "year", "month", "day", "origin", "sched_dep_time")
            rows.append((flight["tailnum"], "-".join(flight[part] for part in parts), flight))
    return rows


def client(url):
    return Queen(url, retry_attempts=1, timeout_millis=20000)


async def push_one(queen, row):
    """Pushes until it is answered; the status of the answer, and how often it was sent."""
    aircraft, transaction, flight = row
    sent = 0
    while True:
        sent += 1
        try:
            message = {"transactionId": transaction, "data": flight}
            answers = await queen.queue(QUEUE).partition(aircraft).push([message])
            if answers and answers[0]["status"] in ("queued", "duplicate"):
                return answers[0]["status"], sent
        except Exception as error:  # the broker is away, or refuses for now
            if sent > 600:
                raise error
        await asyncio.sleep(0.1)


async def push(url, path):
    """Sends every line, an aircraft's always after the one before it; then some of them once more."""
    rows = load(path)
    queen = client(url)
    lanes = defaultdict(list)
    for row in rows:
        lanes[hash(row[0]) % LANES].append(row)
    counts = defaultdict(int)
    started = time.monotonic()

    async def lane(own):
        for row in own:
            status, sent = await push_one(queen, row)
            counts[status] += 1
            counts["sent again"] += sent - 1
            counts["answered"] += 1
            if counts["answered"] % 100 == 0:
                print("at", counts["answered"], flush=True)

    await asyncio.gather(*(lane(own) for own in lanes.values()))
    took = time.monotonic() - started
    refused = 0
    for row in rows[:: max(1, len(rows) // AGAIN)][:AGAIN]:
        status, _ = await push_one(queen, row)
        refused += status == "duplicate"
    await queen.close()
    result = {
        "in": counts["queued"] + counts["duplicate"],
        "sent again": counts["sent again"],
        "absorbed": counts["duplicate"],
        "repushed": min(AGAIN, len(rows)),
        "refused": refused,
        "seconds": round(took, 1),
    }
    print(json.dumps(result), flush=True)


class Group:
    """What one group has been given, judged against the file."""

    def __init__(self, rows):
        self.due = defaultdict(list)
        for aircraft, transaction, flight in rows:
            self.due[aircraft].append((transaction, flight))
        self.taken = defaultdict(int)  # how many of an aircraft were delivered at least once
        self.settled = defaultdict(int)  # how many of them an answered ack covers
        self.total = len(rows)
        self.first = self.again = 0
        self.wrong = []

    def deliver(self, messages, settled_before):
        """Takes one pop's messages; `settled_before` is what answered acks covered when it was sent."""
        by_aircraft = defaultdict(list)
        for message in messages:
            by_aircraft[message["partition"]].append(message)
        for aircraft, own in by_aircraft.items():
            for message in own:
                self.deliver_one(aircraft, message, settled_before[aircraft])

    def deliver_one(self, aircraft, message, settled):
        offset, due, taken = message["offset"], self.due[aircraft], self.taken[aircraft]
        if offset >= len(due) or (message["transactionId"], message["data"]) != due[offset]:
            self.wrong.append(f"{aircraft}: {message['transactionId']} at offset {offset}")
        elif offset < settled:
            self.wrong.append(f"{aircraft}: offset {offset} again after its ack was answered")
        elif offset > taken:
            self.wrong.append(f"{aircraft}: offset {offset} before offset {taken}")
        elif offset == taken:
            self.taken[aircraft] += 1
            self.first += 1
        else:
            self.again += 1

    def settle(self, messages):
        for message in messages:
            aircraft = message["partition"]
            self.settled[aircraft] = max(self.settled[aircraft], message["offset"] + 1)

    def is_done(self):
        return sum(self.settled.values()) >= self.total


async def consume(url, path, name):
    """Four workers pop and ack until everything of the file is settled."""
    group = Group(load(path))
    started = time.monotonic()
    moved = [started]

    async def worker():
        queen = client(url)
        while not group.is_done() and time.monotonic() - moved[0] < 120:
            before = defaultdict(int, group.settled)
            queue = queen.queue(QUEUE).group(name).subscription_mode("all")
            messages = await queue.batch(200).partitions(64).wait(True).timeout_millis(1000).pop()
            if not messages:
                # An empty answer and a broker that is away look the same here.
                await asyncio.sleep(0.05)
                continue
            group.deliver(messages, before)
            for _ in range(600):
                try:
                    answer = await queen.ack(messages, True, {"group": name})
                    results = answer.get("results") or []
                    accepted = [m for m, r in zip(messages, results) if r.get("success")]
                    if not results and answer.get("success"):
                        accepted = messages
                    group.settle(accepted)
                    moved[0] = time.monotonic()
                    break
                except Exception:
                    await asyncio.sleep(0.1)
            print("at", group.first, flush=True)
            # A moment for the next batch to grow: small ones cost the client more than the broker.
            await asyncio.sleep(0.05)
        await queen.close()

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    result = {
        "delivered": group.first,
        "again": group.again,
        "missing": group.total - group.first,
        "wrong": len(group.wrong),
        "examples": group.wrong[:5],
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(result), flush=True)


def main(role, *rest):
    asyncio.run({"push": push, "consume": consume}[role](*rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
