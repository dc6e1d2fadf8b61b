"""Pushes a known set of messages over HTTP and writes down what the broker has to hold afterwards.

    workload.py URL EXPECTED.json

The set has single and batched pushes, small and compressible payloads, many partitions, one push into several
queues, missing transactionIds, every kind of JSON value, and duplicates within a push and across pushes.
"""

import http.client
import json
import sys
import urllib.parse


class Broker:
    """A connection, and what was acknowledged over it."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
        self.held = {}  # (queue, partition) -> [(transaction, data, message id)]
        self.known = {}  # (queue, partition, transaction) -> (offset, message id)
        self.queued = self.duplicates = 0

    def push(self, items):
        """Pushes [(queue, partition, transaction or None, payload text)] and checks each answer."""
        body = ",".join(self.item(*item) for item in items)
        self.connection.request("POST", "/api/v1/push", f'{{"items":[{body}]}}'.encode())
        response = self.connection.getresponse()
        text = response.read()
        if response.status != 201:
            raise SystemExit(f"push: {response.status} {text[:300]!r}")
        answers = json.loads(text)
        if len(answers) != len(items):
            raise SystemExit(f"push: {len(answers)} answers to {len(items)} items")
        for number, (item, answer) in enumerate(zip(items, answers)):
            self.record(number, item, answer)

    @staticmethod
    def item(queue, partition, transaction, payload):
        fields = {"queue": queue, "partition": partition}
        if transaction is not None:
            fields["transactionId"] = transaction
        return json.dumps(fields)[:-1] + f',"payload":{payload}}}'

    def record(self, number, item, answer):
        queue, partition, transaction, payload = item
        name, message = (queue, partition or "Default"), answer["message_id"].replace("-", "")
        key = (*name, answer["transaction_id"])
        rows = self.held.setdefault(name, [])
        if answer["index"] != number or transaction not in (None, answer["transaction_id"]):
            raise SystemExit(f"push: {item[:3]} was answered {answer}")
        wanted = "duplicate" if key in self.known else "queued"
        if answer["status"] != wanted:
            raise SystemExit(f"push: {item[:3]} is {answer['status']}, not {wanted}")
        if wanted == "duplicate":
            self.duplicates += 1
            if self.known[key] != (answer["offset"], message):
                raise SystemExit(f"push: {item[:3]} is a duplicate of another message")
            return
        if answer["offset"] != len(rows):
            raise SystemExit(f"push: {item[:3]} got offset {answer['offset']}, {len(rows)} was due")
        self.known[key] = answer["offset"], message
        rows.append((answer["transaction_id"], payload, message))
        self.queued += 1


def run(broker):
    """The whole set; the same every time."""
    for number in range(60):
        broker.push([("alone", None, f"alone-{number}", f'{{"n":{number}}}')])
    values = ["null", "{}", "[]", "0", "-1.50e3", "true", '"text"', '"\\u00e9 \u00e9 \\n"', '{ "b" : 1, "a" : [ 2 ] }']
    for number, value in enumerate(values):
        broker.push([("values", "p", f"value-{number}", value)])
        broker.push([("values", "no ids", None, value)])
    text = json.dumps({"city": "a word repeated " * 60, "n": 1})
    for number in range(20):
        broker.push([("large", f"p{number % 3}", f"large-{number}", text)])
    for number in range(40):
        batch = [
            ("batches", f"p{item % 50}", f"batch-{number}-{item}", f'{{"batch":{number},"item":{item}}}')
            for item in range(100)
        ]
        broker.push(batch)
    for number in range(30):
        push = [
            (f"many-{queue}", f"customer-{number % 7}", f"many-{number}", f'{{"queue":{queue},"n":{number}}}')
            for queue in range(6)
        ]
        broker.push(push)
    for number in range(0, 60, 3):
        again = ("alone", None, f"alone-{number}", '"other"')
        broker.push([again, again])
    fresh = ("batches", "p1", "twice in one push", "1")
    broker.push([fresh, fresh, ("batches", "p2", "twice in one push", "2"), fresh])
    broker.push([("long names", "p" * 200, "t" * 3000, "1"), ("long names", "\u00fcn\u00efc\u00f6de", "\u00e9-1", "2")])
    wide = [("wide", f"entity-{number}", f"wide-{number}", f'{{"n":{number}}}') for number in range(1500)]
    for start in range(0, len(wide), 500):
        broker.push(wide[start : start + 500])
    # Enough for several files of the smallest size, by single pushes of every size.
    for number in range(120):
        payload = json.dumps({"n": number, "noise": [(number * 7919 + item * 104729) % 1000003 for item in range(number * 8)]})
        broker.push([("rolls", f"p{number % 5}", f"roll-{number}", payload)])


def main(url, path):
    broker = Broker(url)
    run(broker)
    rows = [[*name, found] for name, found in broker.held.items() if found]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rows, file)
    print(f"{broker.queued} pushed, {broker.duplicates} duplicates refused, {len(rows)} partitions")


if __name__ == "__main__":
    main(*sys.argv[1:])
