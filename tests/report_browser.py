#!/usr/bin/env python3
"""Opens pages in headless Chromium, dark and light, wide and as narrow as a phone, and checks what a reader would see.

report_browser.py [--pictures DIR] PAGE...
Checks: nothing is logged as an error, nothing is loaded, dark and light differ, every text has a contrast of at least 4.5,
text of plots is at least 12 px at a width of 900 px, and nothing is wider than the page."""
import argparse, base64, json, os, pathlib, shutil, subprocess, sys, tempfile

PROBE = r"""(() => {
  const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const colour = text => (text.match(/[\d.]+/g) || []).map(Number);
  const over = (top, below, alpha) => below.map((v, i) => alpha * top[i] + (1 - alpha) * v);
  const opaque = c => c.length >= 3 && (c.length < 4 || c[3] > 0);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = colour(getComputedStyle(e).backgroundColor);
      if (opaque(c)) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const contrast = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const wide = document.documentElement.clientWidth, problems = [];
  let texts = 0, smallest = Infinity;
  for (const e of document.querySelectorAll('body *')) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!box.width || style.visibility === 'hidden') continue;
    // The content of a table or of code scrolls within it.
    const scrolls = e.parentElement.closest('table, pre');
    if (!scrolls && (box.right > wide + 0.5 || box.left < -0.5)) problems.push(`${e.tagName} reaches ${box.right} of ${wide} px`);
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('title')) continue;
    texts++;
    const plot = e.closest('svg');
    const alpha = plot ? Number(style.opacity) * Number(style.fillOpacity) : 1;
    const below = ground(plot ? plot.parentElement : e);
    const found = contrast(over(colour(plot ? style.fill : style.color), below, alpha), below);
    if (found < 4.5) problems.push(`contrast ${found.toFixed(2)} of "${e.textContent.trim().slice(0, 40)}"`);
    if (plot) {
      const scale = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
      smallest = Math.min(smallest, parseFloat(style.fontSize) * scale);
    }
  }
  if (document.scrollingElement.scrollWidth > wide) problems.push(`the page scrolls to ${document.scrollingElement.scrollWidth} px`);
  return JSON.stringify({problems, texts, smallest: smallest === Infinity ? null : smallest,
    height: document.scrollingElement.scrollHeight, loaded: performance.getEntriesByType('resource').length});
})()"""


class Browser:
    """Chromium, controlled over a pair of pipes."""

    def __init__(self, program, profile):
        (read, self.write), (self.read, write) = os.pipe(), os.pipe()

        def pipes():
            # Chromium reads from 3 and writes to 4. Both ends may have these numbers already.
            a, b = os.dup(read), os.dup(write)
            while a in (3, 4) or b in (3, 4):
                a, b = os.dup(a), os.dup(b)
            os.dup2(a, 3), os.dup2(b, 4)

        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(command, close_fds=False, preexec_fn=pipes, stderr=subprocess.DEVNULL)
        os.close(read), os.close(write)
        self.messages, self.left, self.number, self.session = [], b"", 0, None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            self.call(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.left:
            part = os.read(self.read, 1 << 20)
            if not part:
                sys.exit("Chromium ended")
            self.left += part
        message, self.left = self.left.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        request |= {"sessionId": self.session} if self.session else {}
        os.write(self.write, json.dumps(request).encode() + b"\0")
        while True:
            message = self.receive()
            if message.get("id") == self.number:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]
            self.messages.append(message)

    def wait(self, method):
        while not any(message.get("method") == method for message in self.messages):
            self.messages.append(self.receive())

    def show(self, page, width, scheme):
        """The probe's findings, what was logged, and a picture."""
        self.messages.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait("Page.loadEventFired")
        found = json.loads(self.call("Runtime.evaluate", expression=PROBE)["result"]["value"])
        size = {"x": 0, "y": 0, "width": width, "height": min(found["height"], 16000), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=size, captureBeyondViewport=True)["data"]
        logged = [m for m in self.messages if m.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        return found, logged, base64.b64decode(shot)

    def close(self):
        self.process.kill()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    program = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if not program:
        sys.exit("there is no Chromium")
    problems = []
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(program, profile)
        for page in options.pages:
            for width in [1200, 900, 360]:
                pictures = {}
                for scheme in ["light", "dark"]:
                    found, logged, pictures[scheme] = browser.show(page, width, scheme)
                    where = f"{page}, {width} px, {scheme}"
                    problems += [f"{where}: {problem}" for problem in found["problems"]]
                    problems += [f"{where}: {json.dumps(m['params'])}" for m in logged]
                    if found["loaded"] or not found["texts"]:
                        problems.append(f"{where}: {found}")
                    if width >= 900 and found["smallest"] and found["smallest"] < 12:
                        problems.append(f"{where}: text of {found['smallest']:.1f} px in a plot")
                    if options.pictures:
                        options.pictures.mkdir(parents=True, exist_ok=True)
                        name = f"{page.parent.name}_{page.stem}_{width}_{scheme}.png"
                        (options.pictures / name).write_bytes(pictures[scheme])
                if pictures["light"] == pictures["dark"]:
                    problems.append(f"{page}, {width} px: dark and light are the same")
        browser.close()
    print("\n".join(problems) or f"{len(options.pages)} pages: dark and light, at three widths")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
