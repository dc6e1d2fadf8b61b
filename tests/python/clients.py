"""Two workloads on the published client, against a cluster whose leaders come and go.

    clients.py queue    SECONDS SEED URL URL URL
    clients.py pipeline SECONDS SEED URL URL URL

`queue`: pushes with ids of their own, two consumer groups that settle all of what they were given, a part, nothing, or ask
for one again. `pipeline`: takes one message, and in one transaction acknowledges it, pushes an output whose id follows from
the input's, and a trail whose id is new in every try.

A call that failed may have been carried out: a push is sent again with the same ids, a transaction is given up and its
message comes again if it was not acknowledged. After SECONDS nothing new is pushed, and everything is drained. The last
line of standard output is the result, as JSON; `wrong` names what no right cluster does.
"""

import asyncio
import json
import random
import sys
import time
import uuid
from collections import Counter, defaultdict

from queen import Queen

PARTITIONS = 12
PUSHERS = 2
WORKERS = 3
GROUPS = ("one", "two")
LEASE_S = 3
# From the end of the pushes on.
DRAIN_S = 120
EMPTY_S = 2 * LEASE_S


def client(urls, number):
    """A client that begins with another node each, goes on to the next when one fails, and gives up soon."""
    turned = urls[number % len(urls) :] + urls[: number % len(urls)]
    return Queen(
        turned,
        timeout_millis=5000,
        load_balancing_strategy="round-robin",
        health_retry_after_millis=1000,
    )


class Run:
    """What all tasks of a workload share."""

    def __init__(self, seconds, seed, urls):
        self.urls = urls
        self.seed = seed
        self.seconds = seconds
        self.wrong = []
        self.counts = Counter()
        self.is_drained = False

    def begin(self):
        self.until = time.monotonic() + self.seconds
        self.end = self.until + DRAIN_S
        self.began = time.time()
        self.moves = {"push": [self.began], "delivery": [self.began]}

    def is_loud(self):
        return time.monotonic() < self.until

    def moved(self, what):
        self.moves[what].append(time.time())

    def stalls(self):
        """Pauses of more than 6 s while there was a load: what, from, until, in seconds of the wall clock."""
        found = []
        last = self.began + self.seconds
        for what, times in self.moves.items():
            times = [at for at in times if at < last] + [last]
            found += [[what, a, b] for a, b in zip(times, times[1:]) if b - a > 6]
        return found


async def push_until_taken(run, queen, queue, partition, items):
    """Sends until every item is answered; the answers."""
    for _ in range(400):
        try:
            answers = await queen.queue(queue).partition(partition).push(items)
            if answers and all(answer.get("status") in ("queued", "duplicate") for answer in answers):
                run.moved("push")
                return answers
            run.wrong.append(f"a push was answered {answers}")
            return []
        except Exception:  # the node is gone, or has no leader
            run.counts["pushes sent again"] += 1
        await asyncio.sleep(0.05)
    run.wrong.append(f"a push to {partition} was never answered")
    return []


async def pusher(run, number, queue, stored, rest_s):
    rng = random.Random(f"{run.seed}-push-{number}")
    queen, next_id = client(run.urls, number), 0
    while run.is_loud():
        partition = f"p{rng.randrange(PARTITIONS)}"
        items = []
        for _ in range(rng.randint(1, 8)):
            items.append({"transactionId": f"{number}-{next_id}", "data": {"id": f"{number}-{next_id}"}})
            next_id += 1
        answers = await push_until_taken(run, queen, queue, partition, items)
        for item, answer in zip(items, answers):
            place = (partition, answer["offset"])
            if place in stored:
                run.wrong.append(f"{place} was given to {stored[place]} and to {item['transactionId']}")
            stored[place] = item["transactionId"]
        await asyncio.sleep(rng.uniform(0, rest_s))
    await queen.close()


class Group:
    """What one group was given and has settled."""

    def __init__(self, run, name, stored):
        self.run, self.name, self.stored = run, name, stored
        self.taken = defaultdict(int)
        self.settled = defaultdict(int)
        self.delivered = set()

    def deliver(self, messages, before):
        by_partition = defaultdict(list)
        for message in messages:
            by_partition[message["partition"]].append(message)
        for partition, own in by_partition.items():
            first = own[0]["offset"]
            if first < before[partition]:
                self.say(f"{partition} offset {first} again after {before[partition]} were settled")
            if first > self.taken[partition]:
                self.say(f"{partition} offset {first} before offset {self.taken[partition]}")
            for due, message in enumerate(own, first):
                if message["offset"] != due:
                    self.say(f"{partition} offset {message['offset']} where {due} was due")
                if message["data"]["id"] != message["transactionId"]:
                    self.say(f"{partition} offset {due} holds {message['data']} as {message['transactionId']}")
                known = self.stored.get((partition, due))
                if known is not None and known != message["transactionId"]:
                    self.say(f"{partition} offset {due} is {message['transactionId']}, {known} was stored")
                self.delivered.add((partition, due))
                self.taken[partition] = max(self.taken[partition], due + 1)

    def say(self, text):
        self.run.wrong.append(f"group {self.name}: {text}")

    async def settle(self, queen, rng, messages):
        choice = rng.random() if self.run.is_loud() else 1.0
        if choice < 0.05:
            return  # the lease runs out
        own = messages
        if choice < 0.15:
            # A claim of several partitions is acknowledged from the start of each.
            first = messages[0]["partition"]
            own = [message for message in messages if message["partition"] == first]
            own = own[: (len(own) + 1) // 2]
        status = True
        if choice > 0.95 and self.run.is_loud():
            own, status = messages[:1], "retry"
        for _ in range(20):
            answer = await queen.ack(own, status, {"group": self.name})
            results = answer.get("results")
            if answer.get("success") or results:
                for message, result in zip(own, results or [{"success": True}] * len(own)):
                    if result.get("success") and status is True:
                        end = message["offset"] + 1
                        partition = message["partition"]
                        self.settled[partition] = max(self.settled[partition], end)
                return
            await asyncio.sleep(0.05)

    async def worker(self, number):
        run = self.run
        rng = random.Random(f"{run.seed}-{self.name}-{number}")
        queen = client(run.urls, number)
        while not run.is_drained and time.monotonic() < run.end:
            before = defaultdict(int, self.settled)
            queue = queen.queue("queue").group(self.name).subscription_mode("all").wait(True).timeout_millis(500)
            messages = await queue.batch(rng.randint(1, 50)).partitions(rng.randint(1, 4)).pop()
            if not messages:
                await asyncio.sleep(0.02)
                continue
            run.moved("delivery")
            run.counts["deliveries"] += len(messages)
            self.deliver(messages, before)
            await self.settle(queen, rng, messages)
        await queen.close()

    def is_done(self):
        ends = Counter(partition for partition, _ in self.stored)
        return all(self.settled[partition] >= end for partition, end in ends.items())


async def drain(run, is_done):
    """Waits until everything is done and stays so for longer than a lease."""
    done_since = None
    while time.monotonic() < run.end:
        await asyncio.sleep(0.1)
        if not is_done():
            done_since = None
        elif done_since is None:
            done_since = time.monotonic()
        elif time.monotonic() - done_since > EMPTY_S:
            break
    run.is_drained = True


async def queue_workload(run):
    queen = client(run.urls, 0)
    await queen.queue("queue").config({"leaseTime": LEASE_S, "retryLimit": 1000000}).create()
    stored = {}
    groups = [Group(run, name, stored) for name in GROUPS]
    run.begin()
    workers = [asyncio.create_task(group.worker(n)) for group in groups for n in range(WORKERS)]
    await asyncio.gather(*(pusher(run, number, "queue", stored, 0.05) for number in range(PUSHERS)))
    await drain(run, lambda: all(group.is_done() for group in groups))
    await asyncio.gather(*workers)
    for partition in {partition for partition, _ in stored}:
        offsets = sorted(offset for place, offset in stored if place == partition)
        if offsets != list(range(len(offsets))):
            run.wrong.append(f"{partition}: {len(offsets)} messages, the last at offset {offsets[-1]}")
    for group in groups:
        missing = [place for place in stored if place not in group.delivered]
        if missing:
            group.say(f"{len(missing)} were never delivered, such as {missing[:3]}")
        if not group.is_done():
            group.say("not everything is settled")
    await queen.close()
    return {"acknowledged": len(stored), "groups": len(groups)}


async def take_all(queen, queue):
    """Everything in a queue, through a group of its own."""
    found, empty = [], 0
    while empty < 3:
        reader = queen.queue(queue).group("reader").subscription_mode("all").commit_on_delivery()
        messages = await reader.batch(1000).partitions(PARTITIONS).wait(False).pop()
        empty = 0 if messages else empty + 1
        found += messages
    return found


async def pipeline_workload(run):
    queen = client(run.urls, 0)
    for name in ("input", "output", "trail"):
        await queen.queue(name).config({"leaseTime": LEASE_S, "retryLimit": 1000000}).create()
    stored, acked = {}, set()

    async def worker(number):
        rng = random.Random(f"{run.seed}-pipeline-{number}")
        own = client(run.urls, number)
        while not run.is_drained and time.monotonic() < run.end:
            reader = own.queue("input").group("work").subscription_mode("all").wait(True).timeout_millis(500)
            messages = await reader.batch(1).pop()
            if not messages:
                await asyncio.sleep(0.02)
                continue
            run.moved("delivery")
            run.counts["deliveries"] += 1
            message = messages[0]
            name, partition = message["transactionId"], message["partition"]
            if name in acked:
                run.wrong.append(f"input {name} again after its transaction was answered")
            if run.is_loud() and rng.random() < 0.05:
                continue  # the lease runs out
            step = own.transaction().ack(message, "completed", {"consumer_group": "work"})
            step = step.queue("output").partition(partition).push({"transactionId": f"out-{name}", "data": name})
            step = step.queue("trail").partition(partition).push({"transactionId": str(uuid.uuid4()), "data": name})
            try:
                await step.commit()
                acked.add(name)
            except Exception:  # rolled back, or not known
                run.counts["transactions failed or unknown"] += 1
        await own.close()

    run.begin()
    workers = [asyncio.create_task(worker(number)) for number in range(2 * WORKERS)]
    await asyncio.gather(*(pusher(run, number, "input", stored, 0.2) for number in range(PUSHERS)))
    last = [0, time.monotonic()]

    def is_done():
        # Inputs whose transaction is not known to have been made are waited for as long as something moves.
        if run.counts["deliveries"] != last[0]:
            last[:] = [run.counts["deliveries"], time.monotonic()]
        return time.monotonic() - last[1] > EMPTY_S

    await drain(run, is_done)
    await asyncio.gather(*workers)
    names = Counter(stored.values())
    outputs = Counter(message["data"] for message in await take_all(queen, "output"))
    trail = Counter(message["data"] for message in await take_all(queen, "trail"))
    for what, found in (("outputs", outputs), ("trails", trail)):
        missing, extra = names - found, found - names
        if missing or extra:
            run.wrong.append(f"{what}: missing {len(missing)}, twice or foreign {len(extra)}: {list((missing + extra))[:5]}")
    await queen.close()
    return {"acknowledged": len(stored), "transactions": len(acked), "outputs": sum(outputs.values())}


def main(role, seconds, seed, *urls):
    run = Run(float(seconds), seed, list(urls))
    workload = {"queue": queue_workload, "pipeline": pipeline_workload}[role]
    result = asyncio.run(workload(run))
    result.update(run.counts)
    result.update({"stalls": run.stalls(), "wrong": len(run.wrong), "examples": run.wrong[:5]})
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
