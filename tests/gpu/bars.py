#!/usr/bin/env python3
"""A real vLLM or SGLang, followed by exec, by attach, or started by a run that is its load, with 1, 16 and 64 requests at a time: its steps
beside the server's own counter, its kernels beside its own torch.profiler.

bars.py run WAY: WAY is exec (profiles too), attach or started. Reads ENGINE (vllm, sglang), COMMAND (of the server), URL and X (llmprof-tui)
from the environment, and writes to OUT/ENGINE. bars.py table: compares what was written. Each load has prompts of a few hundred tokens and
long answers: after the prompts every step decodes the whole batch.
"""
import glob, gzip, json, os, pathlib, random, re, shutil, signal, statistics, subprocess, sys, time, urllib.request

P = pathlib.Path(__file__).resolve().parent
T = pathlib.Path(os.environ.get("OUT", "/tmp/out")) / os.environ["ENGINE"]
AT = [1, 16, 64]
# The prompts come first; then the recording beside the counter.
SETTLE_S, COUNT_S = 3, 6
# The profiler records in the middle of what the counter saw, where the contexts are equal.
PROFILE_S = 1.2
RUNNING = re.compile(r"^(?:vllm:num_requests_running|sglang:num_running_reqs)\{?.*? ([0-9.e+]+)$", re.M)
STEPS = re.compile(r"^(?:vllm:iteration_tokens_total_count|sglang:cuda_graph_passes_total)\{?.*? ([0-9.e+]+)$", re.M)
TOKEN = re.compile(r'{"t":(\d+),"e":{"token":{"r":(\d+),"i":(\d+),')
TOKENS = re.compile(r"^(?:vllm|sglang):generation_tokens_total\{?.*? ([0-9.e+]+)$", re.M)


def environment(name):
    return os.environ[name]


def page():
    return urllib.request.urlopen(environment("URL") + "/metrics", timeout=5).read().decode()


def summed(pattern, text):
    found = pattern.findall(text)
    return sum(map(float, found)) if found else None


def wait(what, condition, seconds):
    end = time.time() + seconds
    while time.time() < end:
        try:
            if condition():
                return True
        except OSError:
            pass
        time.sleep(0.1)
    print(f"{what}: not within {seconds} s", flush=True)
    return False


def count(file):
    end = time.time() + COUNT_S
    with open(file, "w") as out:
        while time.time() < end:
            text = page()
            print(time.time(), summed(STEPS, text), summed(TOKENS, text), file=out)
            time.sleep(0.05)


def load(n):
    tokens = 3500 if n < 64 else 2600
    command = [environment("X"), *f"run --quiet --json runtime=openai runtime.server.url={environment('URL')} runtime.load.concurrency={n} runtime.requests={n} "
               f"runtime.warmup=0 dataset.prompt_tokens=128 infer.max_new_tokens={tokens} telemetry=none profiling=none output.record=false".split()]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait(f"{n} requests", lambda: (summed(RUNNING, page()) or 0) >= n, 20)
    time.sleep(SETTLE_S)
    return client


def end(process, number=signal.SIGTERM):
    process.send_signal(number)
    try:
        return process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()


def idle():
    # SGLang does not update its gauge while it is idle.
    end = time.time() + 2.0
    while time.time() < end and summed(RUNNING, page()) != 0:
        time.sleep(0.1)


def profile(n):
    traces = T / "prof"
    shutil.rmtree(traces, ignore_errors=True)
    client = load(n)
    time.sleep((COUNT_S - PROFILE_S) / 2)
    for what in ("start_profile", "stop_profile"):
        # SGLang's call has an answer without a body.
        urllib.request.urlopen(urllib.request.Request(environment("URL") + "/" + what, b"{}", {"Content-Type": "application/json"}), timeout=60).read()
        time.sleep(PROFILE_S if what == "start_profile" else 0)
    end(client)
    wait("traces", lambda: glob.glob(f"{traces}/**/*.json*", recursive=True), 20)
    time.sleep(2)
    with open(T / f"{n}.torch.tsv", "w") as out, open(T / f"{n}.torch.err", "w") as err:
        subprocess.run([sys.executable, P / "torch_table.py", traces], stdout=out, stderr=err)
    print(f"profiler, {n} at a time:", (T / f"{n}.torch.err").read_text().strip()[-330:], flush=True)
    idle()


def server_command():
    command = environment("COMMAND").split()
    profiler = {"profiler": "torch", "torch_profiler_dir": str(T / "prof")}
    return command + (["--profiler-config", json.dumps(profiler)] if environment("ENGINE") == "vllm" else [])


def trace(file):
    """1, 16 and 64 requests, one after the other."""
    random.seed(1)
    at, lines = 0, [dict(timestamp=0, input_length=512, output_length=8)]
    for n, tokens, seconds in ((1, 2500, 13.5), (16, 2200, 14), (64, 1700, 0)):
        lines += [dict(timestamp=int(1e3 * at), input_length=512, output_length=tokens, hash_ids=[random.randrange(1 << 48)]) for _ in range(n)]
        at += seconds
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(way):
    T.mkdir(parents=True, exist_ok=True)
    os.environ["SGLANG_TORCH_PROFILER_DIR"] = str(T / "prof")
    log, begun = open(T / f"{way}.log", "w"), time.time()
    directory, X = T / "runs" / way, environment("X")
    if way == "exec":
        command = [X, "exec", "--headless", f"hydra.run.dir={directory}", "--", *server_command()]
    elif way == "attach":
        command = server_command()
    else:
        trace(T / "trace.jsonl")
        script = T / "serve.sh"
        script.write_text("#!/bin/sh\nexec " + environment("COMMAND") + "\n")
        script.chmod(0o755)
        command = [X, *f"run --quiet --json --model qwen2_5_7b model.dtype=bf16 runtime={environment('ENGINE')} runtime.server.url={environment('URL')} "
                   f"runtime.server.command={script} runtime.warmup=1 runtime.load.arrivals=trace runtime.load.trace={T}/trace.jsonl runtime.requests=null "
                   f"hydra.run.dir={directory}".split()]
    process = subprocess.Popen(command, stdout=open(T / f"{way}.json", "w"), stderr=log, start_new_session=True)
    health = lambda: urllib.request.urlopen(environment("URL") + "/health", timeout=2).status == 200
    if not wait("server", health, 240):
        print(open(T / f"{way}.log").read()[-1500:])
        os.killpg(process.pid, signal.SIGKILL)
        return
    print(f"{way}: ready after {time.time() - begun:.0f} s", flush=True)
    if way != "started":
        time.sleep(2)
        end(load(16))
        idle()
    for n in AT:
        if way == "started":
            wait(f"{n} requests", lambda: (summed(RUNNING, page()) or 0) >= n, 60)
            time.sleep(SETTLE_S)
            count(T / f"{way}.{n}.counter")
            continue
        client = load(n)
        follower = None
        if way == "attach":
            command = [X, "attach", str(process.pid), "--for", str(COUNT_S + 1), "--json", f"hydra.run.dir={directory}{n}"]
            follower = subprocess.Popen(command, stdout=open(T / f"attach{n}.json", "w"), stderr=open(T / f"attach{n}.err", "w"))
        count(T / f"{way}.{n}.counter")
        if follower:
            print(f"attach at {n}: code {follower.wait(30)}", flush=True)
        end(client)
        idle()
    if way == "exec":
        for n in AT:
            profile(n)
    if way == "started":
        process.wait(60)
    else:
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    print(f"{way}: code {process.returncode}, {time.time() - begun:.0f} s", flush=True)
    subprocess.run(["pkill", "-9", "-f", r"vllm\.entrypoints|sglang\.launch|sglang::|VLLM::"])


def plain(name):
    """A name without what demanglers write in different ways."""
    return re.sub(r"\(unsigned long\)|\(int\)|\(bool\)|\bul\b|(?<=\d)(ul|u|l)\b|\s|const", "", name).replace("true", "1").replace("false", "0")


def family(name):
    return re.sub(r"<.*|\(.*", "", name.removeprefix("void ")).strip()


class Kernels:
    """Calls and total microseconds by name."""

    def __init__(self):
        self.rows = {}

    def add(self, name, calls, us):
        old = self.rows.get(name, (0, 0.0))
        self.rows[name] = (old[0] + calls, old[1] + us)

    def total(self):
        return sum(us for _, us in self.rows.values())

    def by(self, key):
        other = Kernels()
        for name, (calls, us) in self.rows.items():
            other.add(key(name), calls, us)
        return other


def by_profiler(n):
    kernels = Kernels()
    for line in open(T / f"{n}.torch.tsv"):
        calls, total, _, name = line.rstrip("\n").split("\t", 3)
        kernels.add(name, int(calls), float(total))
    return kernels


def lines_of(directory):
    path = pathlib.Path(directory) / "events.ndjson"
    with (open(path) if path.exists() else gzip.open(f"{path}.gz", "rt")) as f:
        yield from f


def recorded(directory, begin, until):
    """Rows of decode steps in this time, kernels per step of each window, times of tokens, absurd figures."""
    kernels, launches, tokens, absurd, begun, unmeasured, reached = Kernels(), [], [], [], 0.0, 0, {}
    for line in lines_of(directory):
        if '"token"' in line[:60]:
            # A chunk may have several tokens.
            at, request, index = map(int, TOKEN.match(line).groups())
            tokens += [begun + at / 1e9] * (index - reached.get(request, -1))
            reached[request] = index
        elif '"run_started"' in line[:60]:
            begun = json.loads(line)["e"]["run_started"]["started_unix_ms"] / 1e3
        elif '"kernels"' in line[:60]:
            event = json.loads(line)
            window, at = event["e"]["kernels"], begun + event["t"] / 1e9
            if window["phase"] != "decode" or not begin < at < until + 1.0 or not window["steps"]:
                continue
            step = window["span_ns"] / window["steps"]
            unmeasured += window.get("unmeasured", 0)
            own = [row for row in window["rows"] if not row["name"].startswith(("copy", "memset"))]
            launches.append(sum(row["calls"] for row in own) / window["steps"])
            for row in own:
                kernels.add(row["name"], row["calls"], row["total_ns"] / 1e3)
                if row.get("max_ns", 0) > step * 1.5 or row.get("min_ns", 1) <= 0:
                    absurd.append((row["name"][:40], row["min_ns"], row["max_ns"], step))
    return kernels, launches, tokens, absurd, unmeasured


def compare(ours, theirs):
    """Of the profiler's twenty largest: those found, the largest difference of a mean in % and of a share in points."""
    rows = []
    exact, families = ours.by(plain), ours.by(family)
    theirs_by_family = theirs.by(family)
    total, their_total = ours.total(), theirs.total()
    for name, (calls, us) in sorted(theirs.rows.items(), key=lambda row: -row[1][1])[:20]:
        own = exact.rows.get(plain(name))
        kind = "name"
        if own is None and family(name) in families.rows:
            own, (calls, us), kind = families.rows[family(name)], theirs_by_family.rows[family(name)], "family"
        if own is None:
            rows.append((name, None, us / calls, None, 100 * us / their_total, "-"))
        else:
            rows.append((name, own[1] / own[0], us / calls, 100 * own[1] / total, 100 * us / their_total, kind))
    return rows


def table():
    for way in ("exec", "attach", "started"):
        for n in AT:
            if not (T / f"{way}.{n}.counter").exists():
                continue
            counted = [tuple(map(lambda v: None if v == "None" else float(v), line.split())) for line in open(T / f"{way}.{n}.counter")]
            directory = T / "runs" / (f"{way}{n}" if way == "attach" else way)
            try:
                kernels, launches, tokens, absurd, unmeasured = recorded(directory, counted[0][0], counted[-1][0])
            except OSError as error:
                print(way, n, error)
                continue
            # A run receives tokens, which other programs do not have: their events are steps.
            column = 2 if way == "started" else 1
            since = (tokens[0] if tokens else 0) + (1.5 if way == "attach" else 0)
            # SGLang counts tokens when their request ends: then those of its steps.
            streams = 1
            if way == "started" and counted[0][2] == counted[-1][2]:
                column, streams = 1, n
            changes = [(b[0], b[column] * streams) for a, b in zip(counted, counted[1:]) if b[column] != a[column] and b[0] > since]
            beside = "no counter"
            if len(changes) > 3:
                (t, a), (u, b) = changes[0], changes[-1]
                own = sum(t < at <= u for at in tokens)
                beside = f"{'tokens' if way == 'started' else 'steps'} {own} / {b - a:.0f} ({100 * (own / (b - a) - 1):+.2f} %) in {u - t:.1f} s"
            rows = compare(kernels, by_profiler(n)) if (T / f"{n}.torch.tsv").exists() else []
            means = [100 * abs(row[1] / row[2] - 1) for row in rows if row[1]]
            shares = [abs(row[3] - row[4]) for row in rows if row[1]]
            per_step = re.search(r"per step ([0-9.]+)", (T / f"{n}.torch.err").read_text()) if rows else None
            print(f"{way} {n}: {beside}; kernels per step {statistics.median(launches) if launches else None} ({len(launches)} windows), profiler {per_step and per_step[1]}; "
                  f"{len(means)} of {len(rows)} found, {sum(m <= 3 for m in means)} means within 3 % (largest {max(means, default=0):.1f}), "
                  f"{sum(s <= 1 for s in shares)} shares within 1 point (largest {max(shares, default=0):.2f}); absurd {len(absurd)} {absurd[:2]}, left out {unmeasured}")
            for name, own, their, share, their_share, kind in rows:
                if own is None or abs(own / their - 1) > 0.03 or abs(share - their_share) > 1:
                    print(f"      {own if own is None else round(own, 2)} / {their:.2f} µs, {share if share is None else round(share, 2)} / {their_share:.2f} %  {kind} {name[:90]}")


def main():
    table() if sys.argv[1] == "table" else run(sys.argv[2])


main()
