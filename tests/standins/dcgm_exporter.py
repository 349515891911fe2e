"""A stand-in for NVIDIA's DCGM exporter: plays the text of GPUs that a script spoils.

serve PORT [--nodes N]      a page for each node at /NODE/metrics, and /config for Prometheus
backfill HOURS [--nodes N]  the same GPUs over the last hours as OpenMetrics, for promtool tsdb create-blocks-from

Eight GPUs a node. What is wrong, on 8 nodes or more:
  node1 GPU 3  power cap at 400 W, for the last 20 minutes
  node2 GPU 5  thermal slowdown at 91 C, always
  node3 GPU 0  Xid 79, for the last 10 minutes
  node4 GPU 6  PCIe replays that grow, always
  node5        idle
  node6        its exporter has vanished: 3 minutes ago in the past, and for every scrape
  node7 GPU 1  a memory clock below that of the others
"""

import argparse
import http.server
import time

PER_NODE = 8
MODEL = "NVIDIA H100 80GB HBM3"
STEP_S = 15


def noise(node, gpu, t):
    """-1, 0 or 1; the same for the same moment."""
    return (node * 7919 + gpu * 104729 + int(t / STEP_S) * 1299709) // 1000 % 3 - 1


def values(node, gpu, t, now):
    """The metrics of a GPU at `t`, of a script that is at `now`."""
    n = noise(node, gpu, t)
    ago = now - t
    v = {
        "SM_CLOCK": 1965 + 15 * n,
        "MEM_CLOCK": 2619,
        "GPU_TEMP": 62 + n,
        "MEMORY_TEMP": 74 + n,
        "POWER_USAGE": 655.5 + 4 * n,
        "GPU_UTIL": 98 + n,
        "MEM_COPY_UTIL": 61 + n,
        "FB_USED": 70000,
        "FB_FREE": 11079,
        "XID_ERRORS": 0,
        "PCIE_REPLAY_COUNTER": 0,
        "CLOCKS_EVENT_REASONS": 0,
        "ECC_SBE_VOL_TOTAL": 0,
        "ECC_DBE_VOL_TOTAL": 0,
        "ROW_REMAP_FAILURE": 0,
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 0,
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL": 0,
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 0,
        "ENFORCED_POWER_LIMIT": 700,
    }
    prof = {"PIPE_TENSOR_ACTIVE": 0.41, "DRAM_ACTIVE": 0.58, "GR_ENGINE_ACTIVE": 0.98}
    where = (node, gpu)
    if where == (1, 3) and ago <= 20 * 60:
        v.update(SM_CLOCK=1290 + 15 * n, POWER_USAGE=399.5 + n, CLOCKS_EVENT_REASONS=4, ENFORCED_POWER_LIMIT=400)
    if where == (2, 5):
        v.update(SM_CLOCK=1605 + 15 * n, GPU_TEMP=91, MEMORY_TEMP=99, CLOCKS_EVENT_REASONS=0x20, POWER_USAGE=560)
    if where == (3, 0) and ago <= 10 * 60:
        v.update(XID_ERRORS=79)
    if where == (4, 6):
        v.update(PCIE_REPLAY_COUNTER=int(t) // 20 % 1000000)
    if node == 5:
        v.update(SM_CLOCK=345, POWER_USAGE=71, GPU_TEMP=31, MEMORY_TEMP=38, GPU_UTIL=0, MEM_COPY_UTIL=0, CLOCKS_EVENT_REASONS=1, FB_USED=4, FB_FREE=81075)
        prof = {name: 0 for name in prof}
    if where == (7, 1):
        v.update(MEM_CLOCK=1593)
    return {**{f"DCGM_FI_DEV_{k}": x for k, x in v.items()}, **{f"DCGM_FI_PROF_{k}": x for k, x in prof.items()}}


def labels(node, gpu):
    uuid = f"GPU-{node:04x}{gpu:04x}-0000-4000-8000-{node * PER_NODE + gpu:012x}"
    return (
        f'gpu="{gpu}",UUID="{uuid}",pci_bus_id="00000000:{16 + gpu:02X}:00.0",device="nvidia{gpu}",'
        f'modelName="{MODEL}",Hostname="node{node}",DCGM_FI_DRIVER_VERSION="550.90.07"'
    )


def page(node):
    now = time.time()
    by_name = {}
    for gpu in range(PER_NODE):
        for name, value in values(node, gpu, now, now).items():
            by_name.setdefault(name, []).append(f"{name}{{{labels(node, gpu)}}} {value}")
    return "".join(f"# TYPE {name} gauge\n" + "\n".join(lines) + "\n" for name, lines in by_name.items())


def config(port, nodes, interval):
    jobs = "".join(
        f"- job_name: dcgm{n}\n  metrics_path: /node{n}/metrics\n  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
        "  metric_relabel_configs: [{target_label: job, replacement: dcgm}]\n"
        for n in range(nodes)
    )
    return f"global: {{scrape_interval: {interval}}}\nscrape_configs:\n{jobs}"


def backfill(hours, nodes, port):
    now = int(time.time()) // STEP_S * STEP_S
    times = range(now - int(hours * 3600), now + 1, STEP_S)
    all_values = {(n, g): [values(n, g, t, now) for t in times] for n in range(nodes) for g in range(PER_NODE)}
    for name in values(0, 0, now, now):
        print(f"# TYPE {name} gauge")
        for (node, gpu), over_time in all_values.items():
            text = f'{name}{{{labels(node, gpu)},job="dcgm",instance="127.0.0.1:{port}"}}'
            for t, at in zip(times, over_time):
                if node != 6 or now - t >= 180:
                    print(text, at[name], t)
    print("# EOF")


def serve(port, nodes, interval):
    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.strip("/").split("/")[0]
            if name == "config":
                text = config(self.server.server_port, nodes, interval)
            elif name.startswith("node") and name != "node6" and int(name[4:]) < nodes:
                text = page(int(name[4:]))
            else:
                return self.send_error(503 if name == "node6" else 404)
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Pages)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["serve", "backfill"])
    parser.add_argument("number", type=float, help="the port, or hours")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--interval", default="1s", help="between two scrapes")
    parser.add_argument("--port", type=int, default=9400, help="of the exporter, in what is written for the past")
    args = parser.parse_args()
    if args.what == "serve":
        serve(int(args.number), args.nodes, args.interval)
    else:
        backfill(args.number, args.nodes, args.port)
