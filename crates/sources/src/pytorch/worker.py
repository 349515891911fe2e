"""The worker of llmprof-tui: loads a model with PyTorch, runs requests, and reports when its tokens were on the host.

`llmprof-tui run runtime=pytorch` starts it. Orders arrive as lines of JSON on stdin, reports leave as lines of JSON on stdout;
whatever else prints there goes to stderr. It needs Python 3.9, torch and, for models that are not a script, transformers.
"""

import contextlib
import gc
import importlib.util
import json
import os
import queue
import sys
import threading
import time
import traceback

OLDEST_TORCH = (2, 1)
OLDEST_TRANSFORMERS = (4, 48)
# A line of a report. A traceback can be long.
MAX_TEXT = 60_000


class Cancelled(BaseException):
    """The workload ends here. Not an Exception: code that handles all of those must not keep it."""


class Refused(Exception):
    """What the worker cannot do: a kind that the profiler knows, and the facts."""

    def __init__(self, kind, text=""):
        super().__init__(text)
        self.kind = kind


class Reports:
    """Lines to the profiler."""

    def __init__(self):
        self.fd = os.dup(1)
        os.dup2(2, 1)
        self.lock = threading.Lock()
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import fcntl

            # Room for seconds of tokens, should the profiler be stopped.
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, 1 << 20)

    def send(self, m, **facts):
        line = json.dumps({"m": m, **facts}, separators=(",", ":")).encode() + b"\n"
        with self.lock:
            while line:
                line = line[os.write(self.fd, line):]

    def log(self, text, level="info"):
        self.send("log", level=level, text=str(text)[:MAX_TEXT])


class Orders(threading.Thread):
    """Lines from the profiler. Pausing and cancelling take effect between tokens."""

    def __init__(self):
        super().__init__(name="orders", daemon=True)
        self.lines = os.fdopen(os.dup(0), "rb")
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        self.waiting = queue.Queue()
        self.running = threading.Event()
        self.running.set()
        self.cancelled = False

    def run(self):
        for line in self.lines:
            order = json.loads(line)
            what = order.get("c")
            if what == "pause":
                self.running.clear()
            elif what == "resume":
                self.running.set()
            elif what == "cancel":
                break
            else:
                self.waiting.put(order)
        # Cancelled, or the profiler is gone.
        self.cancelled = True
        self.running.set()
        self.waiting.put({"c": "end"})


class Workload:
    """What is common to all requests: clock, control, ranges."""

    def __init__(self, reports, orders, config):
        self.reports, self.orders, self.config = reports, orders, config
        self.request = None
        self.index = 0
        self.nvtx = None
        self.quiet = False

    def now(self):
        return time.monotonic_ns()

    def report(self, m, **facts):
        if not self.quiet:
            self.reports.send(m, t=self.now(), r=self.request, **facts)

    def check(self):
        """Between tokens: waits while paused, and stops when cancelled."""
        if not self.orders.running.is_set() and not self.orders.cancelled:
            self.reports.send("paused", t=self.now())
            self.orders.running.wait()
            self.reports.send("resumed", t=self.now())
        if self.orders.cancelled:
            raise Cancelled

    @contextlib.contextmanager
    def range(self, name):
        if self.nvtx is None:
            yield
            return
        self.nvtx.range_push(name)
        try:
            yield
        finally:
            self.nvtx.range_pop()

    def token(self, ids, device_ns=None):
        """The ids of a step are on the host, one for each sequence."""
        ids = ids if isinstance(ids, list) else [ids]
        facts = {} if device_ns is None else {"d": device_ns}
        self.report("token", i=self.index, id=int(ids[0]), **facts)
        self.index += 1

    def vision(self, images, tokens, patches=None, device_ns=None, sizes=()):
        """The images of a request are embeddings."""
        facts = {"d": device_ns} if device_ns is not None else {}
        if patches is not None:
            facts["patches"] = int(patches)
        if sizes:
            facts["sizes"] = [[int(width), int(height)] for width, height in sizes]
        self.report("vision", images=int(images), tokens=int(tokens), **facts)


def version(text):
    numbers = []
    for part in str(text).split("+")[0].split(".")[:2]:
        digits = "".join(c for c in part if c.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


def environment(reports, config):
    """Imports torch, and transformers where it is needed; reports what there is."""
    reports.send("progress", step="importing torch", done=0, total=1)
    if importlib.util.find_spec("torch") is None:
        raise Refused("no_torch")
    try:
        import torch
    except Exception as e:  # a broken installation fails in many ways
        raise Refused("broken_torch", f"{type(e).__name__}: {e}") from e
    found = {"python": sys.version.split()[0], "torch": torch.__version__, "pid": os.getpid(), "executable": sys.executable}
    if version(torch.__version__) < OLDEST_TORCH:
        raise Refused("old_torch", torch.__version__)
    if not config.get("script"):
        reports.send("progress", step="importing transformers", done=0, total=1)
        if importlib.util.find_spec("transformers") is None:
            raise Refused("no_transformers")
        try:
            import transformers
        except Exception as e:
            raise Refused("broken_transformers", f"{type(e).__name__}: {e}") from e
        found["transformers"] = transformers.__version__
        if version(transformers.__version__) < OLDEST_TRANSFORMERS:
            raise Refused("old_transformers", transformers.__version__)
        transformers.logging.set_verbosity_error()
        # Bars that are drawn over each other are no lines of a log.
        transformers.logging.disable_progress_bar()
    device = config["device"]
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise Refused("no_cuda", f"torch {torch.__version__} was built for {torch.version.cuda or 'the CPU'}")
        torch.cuda.set_device(torch.device(device))
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    elif config.get("threads"):
        torch.set_num_threads(config["threads"])
    found["device"] = device
    reports.send("hello", **found)


class Picker:
    """The next token of each sequence from its logits."""

    def __init__(self, torch, infer, device, seed):
        self.torch, self.infer = torch, infer
        self.ngram = infer.get("no_repeat_ngram_size", 0)
        self.penalty = infer.get("repetition_penalty", 1.0)
        self.generator = None
        if infer.get("do_sample"):
            self.generator = torch.Generator(device=device)
            self.generator.manual_seed(seed)
        self.seen = None

    def begin(self, rows):
        self.seen = [list(row) for row in rows] if self.ngram or self.penalty != 1.0 else None

    def pick(self, logits):
        torch, infer = self.torch, self.infer
        if self.seen is not None:
            logits = self.limited(logits.float())
        if self.generator is None:
            return logits.argmax(-1)
        logits = logits.float() / infer["temperature"]
        if infer.get("top_k"):
            kept = min(infer["top_k"], logits.shape[-1])
            least = torch.topk(logits, kept).values[..., -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if infer.get("top_p", 1.0) < 1.0:
            ordered, order = torch.sort(logits, descending=True)
            before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
            ordered = ordered.masked_fill(before > infer["top_p"], float("-inf"))
            logits = torch.full_like(logits, float("-inf")).scatter(-1, order, ordered)
        return torch.multinomial(torch.softmax(logits, -1), 1, generator=self.generator).squeeze(-1)

    def limited(self, logits):
        logits = logits.clone()
        for row, seen in enumerate(self.seen):
            if self.penalty != 1.0:
                known = self.torch.tensor(sorted(set(seen)), device=logits.device)
                values = logits[row, known]
                logits[row, known] = self.torch.where(values > 0, values / self.penalty, values * self.penalty)
            if self.ngram and len(seen) >= self.ngram:
                end = tuple(seen[len(seen) - self.ngram + 1:])
                starts = range(len(seen) - self.ngram + 1)
                banned = [seen[at + self.ngram - 1] for at in starts if tuple(seen[at:at + self.ngram - 1]) == end]
                if banned:
                    logits[row, banned] = float("-inf")
        return logits

    def add(self, ids):
        if self.seen is not None:
            for seen, one in zip(self.seen, ids):
                seen.append(one)


class DeviceClock:
    """Durations of steps by CUDA events."""

    def __init__(self, torch, device):
        self.events = None
        if device.startswith("cuda"):
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def begin(self):
        if self.events:
            self.events[0].record()

    def end(self):
        if self.events:
            self.events[1].record()

    def ns(self):
        """Of the last step; its results are on the host."""
        if not self.events:
            return None
        self.events[1].synchronize()
        return int(self.events[0].elapsed_time(self.events[1]) * 1e6)


class Transformers:
    """A model of transformers: a forward pass for the prompt, then one for each token."""

    def __init__(self, workload, config):
        import torch
        import transformers

        self.torch, self.transformers = torch, transformers
        self.workload, self.config = workload, config
        self.device, self.dtype = config["device"], getattr(torch, config["dtype"])
        self.clock = DeviceClock(torch, self.device)
        self.processor = None
        self.vision_facts = self.vision_ns = None
        workload.reports.send("progress", step="the model", done=0, total=1)
        self.model = self.load()
        self.model.eval()
        self.model.requires_grad_(False)
        self.module = self.model
        self.picker = Picker(torch, config["infer"], self.device, config["seed"])
        self.sees = hasattr(self.hf_config(), "vision_config") or hasattr(self.model, "infer")
        if self.sees:
            self.watch_vision()
        self.cache = None
        self.step = self.model.forward
        mode = config["compile"]
        if mode != "none":
            self.step = torch.compile(self.model.forward, **({} if mode == "default" else {"mode": mode}))
        self.static = config["static_cache"] if config["static_cache"] is not None else mode != "none"
        import inspect

        self.parameters = inspect.signature(self.model.forward).parameters

    def hf_config(self):
        return self.model.config

    def load(self):
        torch, transformers, config = self.torch, self.transformers, self.config
        trust = config["trust_remote_code"]
        more = {}
        if config["attention"] != "auto":
            more["attn_implementation"] = config["attention"]
        if config["weights"] is None:
            return self.random(more)
        path = config["weights"]
        if not os.path.isdir(path):
            raise Refused("no_directory", path)
        try:
            found = transformers.AutoConfig.from_pretrained(path, trust_remote_code=trust)
        except Exception as e:
            self.explain_trust(e)
            raise
        more["trust_remote_code"] = trust
        kind = self.auto_class(found)
        placed = {}
        if config["device_map"] is not None:
            placed["device_map"] = config["device_map"]
        elif self.device != "cpu" and importlib.util.find_spec("accelerate"):
            placed["device_map"] = {"": self.device}
        name = "dtype" if version(transformers.__version__) >= (4, 56) else "torch_dtype"
        self.workload.reports.send("progress", step="weights", done=0, total=1)
        model = kind.from_pretrained(path, **{name: self.dtype}, **placed, **more)
        if not placed:
            model = model.to(self.device)
        if os.path.exists(os.path.join(path, "preprocessor_config.json")) or hasattr(model, "infer"):
            self.processor = self.load_processor(path, trust, hasattr(model, "infer"))
        return model

    def load_processor(self, path, trust, tokenizer_only):
        kind = self.transformers.AutoTokenizer if tokenizer_only else self.transformers.AutoProcessor
        return kind.from_pretrained(path, trust_remote_code=trust)

    def explain_trust(self, error):
        if "trust_remote_code" in str(error):
            raise Refused("trust", self.config["weights"]) from error

    def auto_class(self, found):
        transformers = self.transformers
        seeing = getattr(transformers, "AutoModelForImageTextToText", None)
        # A model with a class of its own says which auto class it is for.
        own = getattr(found, "auto_map", {}) or {}
        for name in ("AutoModelForImageTextToText", "AutoModelForCausalLM", "AutoModel"):
            if name in own and self.config["trust_remote_code"]:
                return getattr(transformers, name)
        if own and type(found).__module__.startswith("transformers_modules") and not self.config["trust_remote_code"]:
            raise Refused("trust", self.config["weights"])
        if seeing is not None and type(found) in seeing._model_mapping and hasattr(found, "vision_config"):
            return seeing
        return transformers.AutoModelForCausalLM

    def random(self, more):
        """The shape, with random weights as transformers begins a training."""
        torch, transformers = self.torch, self.transformers
        arch = dict(self.config["arch"])
        kind = arch.pop("model_type", None)
        try:
            found = transformers.AutoConfig.for_model(kind, **arch)
        except ValueError as e:
            raise Refused("unknown_model", f"{kind} (transformers {transformers.__version__})") from e
        torch.manual_seed(self.config["seed"])
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with torch.device(self.device):
                return self.auto_class(found).from_config(found, **more)
        finally:
            torch.set_default_dtype(before)

    def facts(self):
        parameters = list(self.model.parameters())
        text = self.hf_config().get_text_config() if hasattr(self.hf_config(), "get_text_config") else self.hf_config()
        return {
            "model": type(self.model).__name__,
            "parameters": sum(p.numel() for p in parameters),
            "weight_bytes": sum(p.numel() * p.element_size() for p in parameters),
            "attention": getattr(text, "_attn_implementation", None),
            "compile": self.config["compile"],
            "static_cache": bool(self.static),
        }

    # Requests

    def generate(self, prompt):
        if hasattr(self.model, "infer") and self.processor is not None:
            return self.infer(prompt)
        torch, workload = self.torch, self.workload
        with torch.inference_mode():
            with workload.range("prefill"):
                inputs, length, rows = self.inputs(prompt)
                cache = self.new_cache(length + prompt["output"])
                if "logits_to_keep" in self.parameters:
                    inputs["logits_to_keep"] = 1
                self.picker.begin(rows)
                self.clock.begin()
                out = self.model(**inputs, past_key_values=cache, use_cache=True)
                chosen = self.picker.pick(out.logits[:, -1])
                self.clock.end()
                ids = chosen.tolist()
            device_ns, vision_ns = self.clock.ns(), self.vision_ns or 0
            self.vision_ns = None
            workload.token(ids, None if device_ns is None else max(0, device_ns - vision_ns))
            del out
            answers = [[one] for one in ids]
            self.picker.add(ids)
            with workload.range("decode"):
                self.decode(prompt, chosen, cache, length, answers)
        return answers

    def decode(self, prompt, chosen, cache, length, answers):
        torch, workload = self.torch, self.workload
        stops = set(prompt["stops"])
        ended = [answer[-1] in stops for answer in answers]
        position = torch.full((1,), length, dtype=torch.long, device=self.device)
        more = {}
        if "cache_position" in self.parameters:
            more["cache_position"] = position
        elif not self.sees and "position_ids" in self.parameters:
            more["position_ids"] = position.unsqueeze(0)
        compiled = self.config["compile"] != "none"
        for _ in range(prompt["output"] - 1):
            if all(ended):
                break
            workload.check()
            with workload.range("decode_step"):
                self.clock.begin()
                if compiled:
                    torch.compiler.cudagraph_mark_step_begin()
                out = self.step(input_ids=chosen.unsqueeze(1), past_key_values=cache, use_cache=True, **more)
                with self.sampling():
                    chosen = self.picker.pick(out.logits[:, -1])
                if compiled:
                    chosen = chosen.clone()
                position.add_(1)
                self.clock.end()
                ids = chosen.tolist()
            workload.token(ids, self.clock.ns())
            self.picker.add(ids)
            for row, one in enumerate(ids):
                if not ended[row]:
                    answers[row].append(one)
                    ended[row] = one in stops

    def sampling(self):
        return contextlib.nullcontext()

    def new_cache(self, positions):
        if not self.static:
            return self.transformers.DynamicCache()
        positions = max(positions + 1, self.config["max_positions"])
        if self.cache is None or self.cache_positions < positions:
            self.cache = self.transformers.StaticCache(config=self.hf_config(), max_cache_len=positions)
            self.cache_positions = positions
        else:
            self.cache.reset()
        return self.cache

    def inputs(self, prompt):
        """Tensors of a prompt, its positions, and its ids row by row."""
        torch = self.torch
        if prompt["images"] and self.sees:
            return self.seen(prompt)
        rows = prompt["ids"]
        ids = torch.tensor(rows, dtype=torch.long, device=self.device)
        inputs = {"input_ids": ids}
        if "cache_position" in self.parameters:
            inputs["cache_position"] = torch.arange(ids.shape[1], device=self.device)
        return inputs, ids.shape[1], rows

    # Images

    def watch_vision(self):
        """Reports the moment at which images are embeddings."""
        owner = getattr(self.model, "model", self.model)
        if not hasattr(owner, "get_image_features"):
            owner = self.model
        features = getattr(owner, "get_image_features", None)
        if features is None:
            return
        torch, clock = self.torch, DeviceClock(self.torch, self.device)

        def timed(*args, **kwargs):
            if self.vision_facts is None:
                return features(*args, **kwargs)
            # It is within the clock of the prefill.
            clock.begin()
            with self.workload.range("vision"):
                result = features(*args, **kwargs)
                clock.end()
                if self.device.startswith("cuda"):
                    torch.cuda.synchronize()
            facts, self.vision_facts = self.vision_facts, None
            self.vision_ns = clock.ns()
            self.workload.vision(**facts, device_ns=self.vision_ns)
            return result

        owner.get_image_features = timed

    def seen(self, prompt):
        """The tensors of a prompt with images: by the model's own processor, else for its shape."""
        torch = self.torch
        from PIL import Image

        pictures = [Image.open(path).convert("RGB") for path in prompt["images"]]
        if self.processor is not None:
            content = [{"type": "image", "image": picture} for picture in pictures]
            content.append({"type": "text", "text": prompt["text"]})
            inputs = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
            )
            inputs = {name: value.to(self.device) if hasattr(value, "to") else value for name, value in inputs.items()}
            inputs.pop("attention_mask", None)
        else:
            kind = self.hf_config().model_type
            build = {"qwen2_5_vl": self.qwen, "qwen2_vl": self.qwen, "got_ocr2": self.got, "deepseek_ocr2": self.tiled}.get(kind)
            if build is None:
                raise Refused("no_processor", kind)
            inputs = build(pictures, prompt["ids"][0])
        batch = len(prompt["ids"])
        if batch > 1:
            inputs = {name: value.repeat(batch, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
        for name, value in inputs.items():
            if hasattr(value, "is_floating_point") and value.is_floating_point():
                inputs[name] = value.to(self.dtype)
        ids = inputs["input_ids"]
        marker = getattr(self.hf_config(), "image_token_id", getattr(self.hf_config(), "image_token_index", None))
        tokens = int((ids == marker).sum()) if marker is not None else 0
        patches = None
        if "image_grid_thw" in inputs:
            patches = int(inputs["image_grid_thw"].prod(-1).sum())
        elif inputs["pixel_values"].dim() == 4 and getattr(self.hf_config().vision_config, "patch_size", None):
            views, _, height, width = inputs["pixel_values"].shape
            size = self.hf_config().vision_config.patch_size
            patches = views * (height // size) * (width // size)
        sizes = [picture.size for picture in pictures]
        self.vision_facts = {"images": len(pictures) * batch, "tokens": tokens, "patches": patches, "sizes": sizes}
        self.workload.report("length", tokens=ids.shape[1])
        return inputs, ids.shape[1], ids.tolist()

    def pixels(self, picture, width, height):
        """A picture of this size, with the mean and deviation of CLIP: [3, height, width]."""
        torch = self.torch
        picture = picture.resize((width, height))
        flat = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        image = flat.view(height, width, 3).permute(2, 0, 1).to(self.device).float() / 255
        mean = torch.tensor([0.4815, 0.4578, 0.4082], device=self.device).view(3, 1, 1)
        deviation = torch.tensor([0.2686, 0.2613, 0.2758], device=self.device).view(3, 1, 1)
        return (image - mean) / deviation

    def with_images(self, counts, text, before=(), after=()):
        """Ids of a prompt: for each image its tokens, then the text."""
        config = self.hf_config()
        marker = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
        special = {marker, *before, *after}
        for name in ("vision_start_token_id", "vision_end_token_id", "video_token_id"):
            special.add(getattr(config, name, None))
        plain = next(one for one in range(1, 10_000) if one not in special)
        text = [one if one not in special else plain for one in text]
        ids = []
        for count in counts:
            ids += [*before, *[marker] * count, *after]
        return self.torch.tensor([ids + text], dtype=self.torch.long, device=self.device)

    def qwen(self, pictures, text):
        torch, config = self.torch, self.hf_config()
        vision = config.vision_config
        patch, merge, frames = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
        unit = patch * merge
        limits = self.config.get("preprocess") or {}
        most = limits.get("max_pixels") or 28 * 28 * 1280
        least = limits.get("min_pixels") or 56 * 56
        values, grids, counts = [], [], []
        for picture in pictures:
            height, width = fitted(picture.height, picture.width, unit, least, most)
            image = self.pixels(picture, width, height)
            rows, columns = height // patch, width // patch
            image = image.unsqueeze(0).repeat(frames, 1, 1, 1)
            cut = image.reshape(1, frames, 3, rows // merge, merge, patch, columns // merge, merge, patch)
            cut = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
            values.append(cut.reshape(rows * columns, 3 * frames * patch * patch))
            grids.append([1, rows, columns])
            counts.append(rows * columns // merge**2)
        ids = self.with_images(counts, text, [config.vision_start_token_id], [config.vision_end_token_id])
        inputs = {"input_ids": ids, "pixel_values": torch.cat(values), "image_grid_thw": torch.tensor(grids, device=self.device)}
        if "mm_token_type_ids" in self.parameters:
            inputs["mm_token_type_ids"] = (ids == config.image_token_id).int()
        return inputs

    def got(self, pictures, text):
        config = self.hf_config()
        side = config.vision_config.image_size
        values = self.torch.stack([self.pixels(picture, side, side) for picture in pictures])
        count = (side // config.vision_config.patch_size // 4) ** 2
        return {"input_ids": self.with_images([count] * len(pictures), text), "pixel_values": values}

    def tiled(self, pictures, text):
        """A view of the whole page, as for DeepSeek-OCR 2 without tiles."""
        config = self.hf_config()
        sam = getattr(config.vision_config, "sam_config", config.vision_config)
        side = getattr(sam, "image_size", 1024)
        values = self.torch.stack([self.pixels(picture, side, side) for picture in pictures])
        # The encoder has one query for each of its tokens; the last is the separator of views.
        count = (side // getattr(sam, "patch_size", 16) // 4) ** 2 + 1
        return {"input_ids": self.with_images([count] * len(pictures), text), "pixel_values": values}

    def infer(self, prompt):
        """A model whose own code prepares its images (DeepSeek-OCR): tokens are seen through a streamer."""
        workload, model = self.workload, self.model
        settings = self.config.get("preprocess") or {}
        answers, state = [], {"prompt": True}

        class Streamer:
            def put(_, value):
                if state.pop("prompt", False):
                    workload.report("length", tokens=value.shape[-1])
                    return
                ids = value.reshape(-1).tolist()
                workload.token(ids)
                answers.extend(ids)
                workload.check()

            def end(_):
                pass

        original = model.generate

        def generate(*args, **kwargs):
            kwargs.update(max_new_tokens=prompt["output"], streamer=Streamer(), do_sample=False)
            kwargs.pop("temperature", None)
            if prompt["ignore_eos"]:
                kwargs.update(min_new_tokens=prompt["output"])
            return original(*args, **kwargs)

        hooks = []
        inner = getattr(model, "model", model)
        projector = getattr(inner, "projector", None)
        if projector is not None:
            def encoded(_module, _inputs, output):
                if not state.pop("seen", False):
                    state["views"] = state.get("views", 0) + 1
                    state["tokens"] = state.get("tokens", 0) + output.shape[-2]

            hooks.append(projector.register_forward_hook(encoded))
            layers = getattr(inner, "layers", None)
            if layers is not None:
                def decoded(_module, _inputs):
                    if state.get("views"):
                        if self.device.startswith("cuda"):
                            self.torch.cuda.synchronize()
                        workload.vision(len(prompt["images"]), state.pop("tokens"))
                        state.pop("views")

                hooks.append(layers[0].register_forward_pre_hook(decoded))
        model.generate = generate
        try:
            import tempfile

            text = prompt["text"] or "<image>\nFree OCR."
            with tempfile.TemporaryDirectory() as out, workload.range("request"):
                model.infer(
                    self.processor, prompt=text, image_file=prompt["images"][0] if prompt["images"] else "", output_path=out,
                    base_size=settings.get("base_size", 1024), image_size=settings.get("image_size", 640),
                    crop_mode=settings.get("crop_mode", True), save_results=False, eval_mode=True,
                )
        finally:
            model.generate = original
            for hook in hooks:
                hook.remove()
        return [answers]

    def text(self, answers):
        if self.processor is None:
            return None
        decoder = getattr(self.processor, "tokenizer", self.processor)
        return [decoder.decode(answer, skip_special_tokens=True) for answer in answers]

    def marked(self, answers):
        """The text with the tokens that mark boxes."""
        if self.processor is None:
            return None
        decoder = getattr(self.processor, "tokenizer", self.processor)
        return [decoder.decode(answer, skip_special_tokens=False) for answer in answers]


def fitted(height, width, unit, least, most):
    """The size nearest to a picture's whose sides are multiples of `unit`, with a number of pixels within the limits."""
    import math

    rows, columns = max(unit, round(height / unit) * unit), max(unit, round(width / unit) * unit)
    if rows * columns > most:
        scale = math.sqrt(height * width / most)
        rows = max(unit, math.floor(height / scale / unit) * unit)
        columns = max(unit, math.floor(width / scale / unit) * unit)
    elif rows * columns < least:
        scale = math.sqrt(least / (height * width))
        rows, columns = math.ceil(height * scale / unit) * unit, math.ceil(width * scale / unit) * unit
    return rows, columns


class Script:
    """A user's own code: `load(config)` and `generate(model, prompt, on_token)`."""

    def __init__(self, workload, config):
        import torch

        self.torch, self.workload, self.config = torch, workload, config
        self.device = config["device"]
        path = config["script"]
        if not os.path.isfile(path):
            raise Refused("no_script", path)
        spec = importlib.util.spec_from_file_location("llmprof_workload", path)
        self.code = importlib.util.module_from_spec(spec)
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        sys.modules[spec.name] = self.code
        spec.loader.exec_module(self.code)
        missing = [name for name in ("load", "generate") if not callable(getattr(self.code, name, None))]
        if missing:
            raise Refused("script_lacks", " and ".join(missing))
        workload.reports.send("progress", step="load() of the script", done=0, total=1)
        self.model = self.code.load(dict(config))
        self.module = None
        for candidate in (self.model, getattr(self.model, "model", None)):
            if isinstance(candidate, torch.nn.Module):
                self.module = candidate
                break

    def facts(self):
        if self.module is None:
            return {"model": type(self.model).__name__}
        parameters = list(self.module.parameters())
        return {
            "model": type(self.module).__name__,
            "parameters": sum(p.numel() for p in parameters),
            "weight_bytes": sum(p.numel() * p.element_size() for p in parameters),
        }

    def generate(self, prompt):
        answers = [[] for _ in prompt["ids"]]
        texts = None

        def on_token(ids):
            ids = ids.tolist() if hasattr(ids, "tolist") else ids
            ids = ids if isinstance(ids, list) else [int(ids)]
            self.workload.token(ids)
            for answer, one in zip(answers, ids):
                answer.append(int(one))
            self.workload.check()

        on_token.vision = self.workload.vision
        on_token.range = self.workload.range
        result = self.code.generate(self.model, dict(prompt), on_token)
        if isinstance(result, str):
            texts = [result]
        self.texts = texts
        return answers

    def text(self, _answers):
        return self.texts

    def marked(self, _answers):
        return self.texts

    def sampling(self):
        return contextlib.nullcontext()


# Boxes

NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
FOUR = ",".join([NUMBER] * 4)
MAX_BOXES = 1000


def boxes_in(text, width, height):
    """Labels and boxes of an answer, in pixels: as DeepSeek-OCR, Qwen2-VL and Qwen2.5-VL write them."""
    import re

    found = []
    for label, lists in re.findall(r"(?:<\|ref\|>(.{0,200}?)<\|/ref\|>)?<\|det\|>(.{0,100000}?)<\|/det\|>", text, re.S):
        found += [(label, [float(n) for n in box], 999) for box in re.findall(r"\[" + FOUR + r"\]", lists)]
    pair = r"\(" + NUMBER + "," + NUMBER + r"\)"
    marked = r"(?:<\|object_ref_start\|>(.{0,200}?)<\|object_ref_end\|>)?<\|box_start\|>" + pair + r"\s*,\s*" + pair + r"<\|box_end\|>"
    found += [(label, [float(n) for n in box], 1000) for label, *box in re.findall(marked, text, re.S)]
    listed = r"\"bbox_2d\"\s*:\s*\[" + FOUR + r"\](?:\s*,\s*\"label\"\s*:\s*\"([^\"]{0,200})\")?"
    found += [(box[4], [float(n) for n in box[:4]], None) for box in re.findall(listed, text)]
    boxes = []
    for label, box, scale in found[:MAX_BOXES]:
        if scale is not None:
            box = [n / scale * side for n, side in zip(box, (width, height, width, height))]
        left, top, right, bottom = box
        left, right = sorted(min(max(x, 0), width - 1) for x in (left, right))
        top, bottom = sorted(min(max(y, 0), height - 1) for y in (top, bottom))
        boxes.append((label.strip(), (left, top, right, bottom)))
    return boxes


def visualize(workload, order, texts):
    """Draws the boxes of an answer into its picture."""
    folder = workload.config.get("visualizations")
    if not folder or not order["images"] or not texts or order["warmup"]:
        return
    try:
        from PIL import Image, ImageDraw

        picture = Image.open(order["images"][0]).convert("RGB")
        boxes = boxes_in(texts[0], *picture.size)
        if not boxes:
            return
        draw = ImageDraw.Draw(picture)
        colours = ["#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"]
        labels = sorted({label for label, _ in boxes})
        for label, box in boxes:
            colour = colours[labels.index(label) % len(colours)]
            draw.rectangle(box, outline=colour, width=max(2, picture.width // 400))
            if label:
                draw.text((box[0] + 3, max(0, box[1] - 12)), label[:40], fill=colour)
        os.makedirs(folder, exist_ok=True)
        picture.save(os.path.join(folder, f"request-{order['r']:04}.png"))
    except Exception as e:
        workload.reports.log(f"the boxes of request {order['r']} are not drawn: {e}", "warn")


# Operators

# Which operator of the profiler a module is, by the end of its name.
OPERATORS = {
    "embed_tokens": "embedding", "wte": "embedding", "input_layernorm": "attn_norm", "ln_1": "attn_norm",
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "qkv_proj": "qkv", "query_key_value": "qkv", "c_attn": "qkv",
    "rotary_emb": "rope", "q_norm": "rope", "k_norm": "rope",
    "o_proj": "attn_out", "out_proj": "attn_out",
    "pre_feedforward_layernorm": "mlp_norm", "ln_2": "mlp_norm", "post_feedforward_layernorm": "post_mlp_norm",
    "gate_proj": "gate_up", "up_proj": "gate_up", "gate_up_proj": "gate_up", "fc1": "gate_up", "c_fc": "gate_up",
    "act_fn": "activation", "down_proj": "down", "fc2": "down", "lm_head": "lm_head",
    "gate": "router", "router": "router", "experts": "gate_up", "shared_expert_gate": "router",
    "qkv": "qkv", "merger": "projector", "projector": "projector", "neck": "projector", "multi_modal_projector": "projector", "norm1": "attn_norm", "norm2": "mlp_norm",
    "patch_embed": "embedding", "layer_norm1": "attn_norm", "layer_norm2": "mlp_norm", "lin1": "gate_up", "lin2": "down",
}
# Modules whose remaining work is an operator: what is neither a product nor attention itself.
AROUND = {"self_attn": "rope", "attn": "rope", "attention": "rope", "mlp": "activation"}


def operator_of(name, names):
    parts = name.split(".")
    last = parts[-1]
    if last == "post_attention_layernorm":
        # Before the MLP, unless that has a norm of its own.
        own = ".".join(parts[:-1] + ["pre_feedforward_layernorm"])
        return "post_attn_norm" if own in names else "mlp_norm"
    if last in ("norm", "ln_f", "final_layernorm") and not any(part.isdigit() for part in parts):
        return "final_norm"
    if last == "c_proj":
        return "down" if "mlp" in parts else "attn_out"
    if last == "proj" and "attn" in parts:
        return "attn_out"
    if last in ("attn", "attention") and any(part in ("vision_tower", "vision_model", "sam_model", "sam_encoder") for part in parts):
        # Encoders with a table of positions do nothing else there.
        return "attention"
    return OPERATORS.get(last) or AROUND.get(last)


def layer_of(name):
    numbers = [part for part in name.split(".") if part.isdigit()]
    return int(numbers[0]) if numbers else None


class Spans:
    """Times of operators on the host, without the operators within them; or annotations for torch.profiler; or NVTX ranges."""

    def __init__(self, workload, module):
        self.workload, self.module = workload, module
        self.hooks, self.restore = [], []
        self.open = []
        self.rows = {}
        self.enter = self.leave = None

    def attach(self, enter, leave):
        self.enter, self.leave = enter, leave
        self.open = []
        names = {name for name, _ in self.module.named_modules()}
        for name, module in self.module.named_modules():
            operator = operator_of(name, names)
            if operator is None:
                continue
            layer = layer_of(name)
            self.hooks.append(module.register_forward_pre_hook(lambda _m, _i, o=operator, l=layer: self.enter(o, l)))
            self.hooks.append(module.register_forward_hook(lambda _m, _i, _o: self.leave()))
        self.wrap_attention()

    def wrap_attention(self):
        """Attention is a function, not a module."""
        def wrapped(function):
            def attention(*args, **kwargs):
                self.enter("attention", None)
                try:
                    return function(*args, **kwargs)
                finally:
                    self.leave()

            return attention

        import torch.nn.functional as functional

        original = functional.scaled_dot_product_attention
        registry = None
        with contextlib.suppress(ImportError):
            from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as registry
        known = {}
        if registry is not None:
            for name in list(registry.keys()):
                known[name] = registry[name]
                registry[name] = wrapped(known[name])
        eager = []
        for module in {sys.modules.get(type(part).__module__) for part in self.module.modules()}:
            if module is not None and hasattr(module, "eager_attention_forward"):
                eager.append((module, module.eager_attention_forward))
                module.eager_attention_forward = wrapped(module.eager_attention_forward)
        if not known:
            functional.scaled_dot_product_attention = wrapped(original)

        def restore():
            functional.scaled_dot_product_attention = original
            for name, function in known.items():
                registry[name] = function
            for module, function in eager:
                module.eager_attention_forward = function

        self.restore.append(restore)

    def detach(self):
        for hook in self.hooks:
            hook.remove()
        for restore in self.restore:
            restore()
        self.hooks, self.restore, self.open = [], [], []
        self.enter = None

    # As times

    def begin_timed(self, operator, _layer):
        self.open.append([operator, time.perf_counter_ns(), 0])

    def end_timed(self):
        if not self.open:
            return
        operator, start, within = self.open.pop()
        ns = time.perf_counter_ns() - start
        if self.open:
            self.open[-1][2] += ns
        own = max(0, ns - within)
        row = self.rows.setdefault(operator, [0, 0, own, own])
        row[0] += 1
        row[1] += own
        row[2], row[3] = min(row[2], own), max(row[3], own)

    @contextlib.contextmanager
    def within(self, operator):
        if self.enter is None:
            yield
            return
        self.enter(operator, None)
        try:
            yield
        finally:
            self.leave()


class Profiled(Workload):
    """A request whose tokens are not measured; its phases are ranges for the profiler of PyTorch."""

    def __init__(self, workload, spans, marks):
        super().__init__(workload.reports, workload.orders, workload.config)
        self.quiet, self.spans, self.marks = True, spans, marks
        self.phases = {}

    @contextlib.contextmanager
    def range(self, name):
        phase = {"prefill": "prefill", "decode_step": "decode", "vision": "vision"}.get(name)
        if phase is None:
            yield
            return
        if phase == "decode" and self.config["compile"] != "none":
            # Modules of compiled steps are not called one by one.
            self.spans.detach()
        before = self.spans.rows
        self.spans.rows = self.phases.setdefault(phase, {"steps": 0, "ns": 0, "rows": {}})["rows"]
        start = time.perf_counter_ns()
        with self.marks(f"llmprof:{phase}"):
            yield
        ns = time.perf_counter_ns() - start
        self.phases[phase]["steps"] += 1
        self.phases[phase]["ns"] += ns
        self.spans.rows = before
        if phase == "vision" and "prefill" in self.phases:
            # It is within the prefill's range, and is no part of it.
            self.phases["prefill"]["ns"] -= ns


def profile(runner, workload, order):
    """Operators of a few steps: first by the clock of the host, then by torch.profiler."""
    import torch

    if runner.module is None:
        spans = None
    else:
        spans = Spans(workload, runner.module)
    steps = order["steps"]
    prompt = dict(order["prompt"], output=steps + 1)
    working = lambda doing, share: workload.reports.send("profiling", doing=doing, share=share)
    original = runner.workload
    plain = getattr(runner, "sampling", None)
    try:
        if spans is not None:
            working("timing operators on the host", 0.0)
            timed = Profiled(workload, spans, lambda _name: contextlib.nullcontext())
            runner.workload = timed
            spans.attach(spans.begin_timed, spans.end_timed)
            runner.sampling = lambda: spans.within("sampling")
            runner.generate(prompt)
            spans.detach()
            for phase, found in timed.phases.items():
                rows = [[operator, *row] for operator, row in found["rows"].items()]
                if not rows:
                    continue
                workload.reports.send("operators", phase=phase, steps=found["steps"], ns=max(0, found["ns"]), rows=rows)
        working(f"recording {steps} steps", 0.3)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if workload.config["device"].startswith("cuda"):
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        marks = torch.profiler.record_function
        spans = spans or Spans(workload, torch.nn.Module())
        runner.workload = Profiled(workload, spans, marks)
        open_marks = []

        def enter(operator, _layer):
            mark = marks(f"llmprof:{operator}")
            mark.__enter__()
            open_marks.append(mark)

        def leave():
            if open_marks:
                open_marks.pop().__exit__(None, None, None)

        spans.attach(enter, leave)
        runner.sampling = lambda: spans.within("sampling")
        with torch.profiler.profile(
            activities=activities, record_shapes=order["shapes"], profile_memory=order["memory"], with_stack=order["stack"]
        ) as found:
            runner.generate(prompt)
        working("writing the trace", 0.7)
        found.export_chrome_trace(order["file"])
        workload.reports.send("profiled", file=order["file"], steps=steps)
    finally:
        if spans is not None:
            spans.detach()
        runner.workload = original
        if plain is not None:
            runner.sampling = plain


def nvtx_ranges(workload, runner, detail):
    """Ranges of modules: layers, or all operators."""
    spans = Spans(workload, runner.module)
    names = {name for name, _ in runner.module.named_modules()}

    # What a hook returns replaces what the module gets or gives, and both of these return a number.
    def push(label):
        workload.nvtx.range_push(label)

    def pop():
        workload.nvtx.range_pop()

    for name, module in runner.module.named_modules():
        parts = name.split(".")
        is_layer = parts[-1].isdigit() and len(parts) >= 2 and parts[-2] in ("layers", "h", "blocks")
        operator = operator_of(name, names) if detail == "op" else None
        label = f"layer {parts[-1]}" if is_layer else operator
        if label is None:
            continue
        module.register_forward_pre_hook(lambda _m, _i, label=label: push(label))
        module.register_forward_hook(lambda _m, _i, _o: pop())
    if detail == "op":
        spans.enter, spans.leave = (lambda operator, _l: push(operator)), pop
        spans.wrap_attention()


def memory(workload):
    if not workload.config["device"].startswith("cuda"):
        return
    import torch

    stats = torch.cuda.memory_stats()
    workload.reports.send(
        "memory",
        live=stats.get("allocated_bytes.all.current", 0),
        peak=stats.get("allocated_bytes.all.peak", 0),
        reserved=stats.get("reserved_bytes.all.current", 0),
    )


def describe(error):
    """A kind that the profiler knows, and the last line of the error."""
    if isinstance(error, Refused):
        return error.kind, str(error)
    name = type(error).__name__
    text = f"{name}: {error}".strip()
    if name in ("OutOfMemoryError", "MemoryError") or "out of memory" in text:
        return "memory", str(error).split("\n")[0]
    if isinstance(error, ImportError):
        return "import", text
    return "error", text


def serve(workload, orders, runner):
    while True:
        order = orders.waiting.get()
        what = order["c"]
        if what == "end" or orders.cancelled:
            return
        if what == "profile":
            try:
                profile(runner, workload, order)
            except Cancelled:
                return
            except Exception as e:
                kind, text = describe(e)
                workload.reports.send("not_profiled", kind=kind, error=text[:2000], trace=traceback.format_exc()[-MAX_TEXT:])
            continue
        if what != "run":
            continue
        workload.request, workload.index = order["r"], 0
        complete, answers = False, None
        gc.collect()
        try:
            workload.check()
            workload.report("request")
            with workload.range("warmup" if order["warmup"] else "request"):
                answers = runner.generate(order)
            complete = True
        finally:
            facts = {}
            if answers is not None and order["answers"]:
                facts["ids"] = answers
                texts = runner.text(answers)
                visualize(workload, order, runner.marked(answers))
                if texts is not None:
                    facts["texts"] = texts
            if workload.index or complete:
                workload.report("finished", complete=complete, **facts)
            memory(workload)


def main():
    reports, orders = Reports(), Orders()
    orders.start()
    config = orders.waiting.get()
    if config["c"] == "end":
        return 0
    workload = Workload(reports, orders, config)
    doing = "environment"
    try:
        started = time.monotonic()
        environment(reports, config)
        doing = "load"
        runner = Script(workload, config) if config.get("script") else Transformers(workload, config)
        if config["device"].startswith("cuda"):
            import torch

            torch.cuda.synchronize()
            workload.nvtx = torch.cuda.nvtx
            if config["nvtx"] != "phase" and runner.module is not None and config["compile"] == "none":
                nvtx_ranges(workload, runner, config["nvtx"])
        reports.send("ready", ms=(time.monotonic() - started) * 1e3, **runner.facts())
        memory(workload)
        doing = "run"
        serve(workload, orders, runner)
        reports.send("done")
    except Cancelled:
        return 0
    except BaseException as e:
        if orders.cancelled and not isinstance(e, Refused):
            return 0
        kind, text = describe(e)
        reports.send("failed", doing=doing, kind=kind, error=text[:2000], trace=traceback.format_exc()[-MAX_TEXT:])
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Destructors of CUDA take seconds, and can hang.
    os._exit(code)
