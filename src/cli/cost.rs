//! `cost`: the estimated cost of a model on a GPU, without running it.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::{Failure, args::ConfigArgs, print, print_data};
use llm_cost::{Shape, SpecError, spec};
use llmprof_analysis::peaks::{GpuPeaks, MEASURE, OVERRIDE, Peaks, is_part, peaks, peaks_of};
use llmprof_base::{dir::Dir, foreign::visible, markup::inert_markdown, process::eprint_line};
use llmprof_config::{Dtype, Names, RunConfig, Scheme, Weights};
use llmprof_event::{GivenPeaks, GpuInfo};
use llmprof_record::report::cost::{CostEstimate, CostGpu, CostQuery, known_gpus};
use llmprof_run::{inputs::Model, work::kind_of};
use llmprof_sources::telemetry::{GpuProbe, nvml::NvmlProbe};

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui cost --model llama3_1_8b --gpu h100 model.dtype=bf16
  llmprof-tui cost --model qwen2_5_7b --gpu rtx_4090 --weight-bits 4.5 dataset.prompt_tokens=4096
  llmprof-tui cost --model deepseek_ocr --gpu h200 --images 1240x1754,640x480
  llmprof-tui cost model.config_json=mixtral/config.json --gpu h200 --json";

#[derive(Debug, Args)]
pub(super) struct CostArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    /// Estimate for this GPU: h100, rtx_4090, … or the name that the driver reports
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Assume a quantised model with this many bits per weight, e.g. 4.5 or 8
    #[arg(long, value_name = "BITS")]
    weight_bits: Option<f64>,
    /// Set the width and height of the images in each prompt, in pixels, for a model with a vision encoder (default: 1240x1754)
    #[arg(long, value_name = "WxH", value_delimiter = ',', value_parser = picture)]
    images: Vec<(u32, u32)>,
    /// Write static_compute.json and static_compute.md to DIR
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &CostArgs) -> Result<u8, Failure> {
    let config = args.config.compose()?.config;
    if let Some(bits) = args.weight_bits.filter(|bits| !(0.5..=64.0).contains(bits)) {
        return Err(Failure::usage(format_args!("--weight-bits {bits}: expected 0.5 to 64 bits")));
    }
    let shape = shape_of(&config, args.weight_bits)?;
    let images = match (&shape.vision, args.images.as_slice()) {
        (None, []) => Vec::new(),
        (None, _) => {
            let model = visible(&config.model.name);
            return Err(Failure::usage(format_args!(
                "--images: {model} has no vision encoder of known cost"
            )));
        }
        (Some(_), []) => vec![PAGE],
        (Some(_), given) if given.len() > MAX_IMAGES => {
            return Err(Failure::usage(format_args!("--images: at most {MAX_IMAGES} images")));
        }
        (Some(_), given) => given.to_vec(),
    };
    let given =
        GivenPeaks { flops: config.hardware.peaks.flops, bytes_per_s: config.hardware.peaks.bytes_per_s };
    let gpu = args.gpu.as_deref().map(Gpu::named).transpose()?;
    let peaks_in = |dtype: &str| match &gpu {
        Some(gpu) => gpu.peaks(dtype, given),
        None => peaks(None, dtype, given),
    };
    let arithmetic = shape.quantisation.as_ref().and_then(|found| found.arithmetic.as_deref());
    let narrow = arithmetic.filter(|_| given.flops.is_none()).and_then(|dtype| peaks_in(dtype).ok());
    let estimate = CostEstimate::new(CostQuery {
        model: config.model.name.clone(),
        batch: u64::from(config.runtime.batch_size),
        prompt_tokens: u64::from(config.dataset.prompt_tokens),
        images,
        preprocess: config.model.preprocess.clone(),
        output_tokens: u64::from(config.infer.max_new_tokens),
        gpu: gpu.as_ref().map(Gpu::for_cost),
        peaks: peaks_in(&shape.dtype),
        narrow_flops: narrow.map(|peaks| peaks.flops),
        shape,
    });
    let json = serde_json::to_string_pretty(&estimate.json()).map_err(Failure::work)?;
    match args.json {
        true => print_data(&json)?,
        false => print(&estimate.text())?,
    }
    if let Some(dir) = &args.out {
        let opened = Dir::open(dir).map_err(Failure::cannot_write(dir))?;
        for (name, content) in [
            ("static_compute.json", visible(&json).into_owned() + "\n"),
            ("static_compute.md", inert_markdown(&estimate.markdown())),
        ] {
            opened.write(name, content).map_err(Failure::cannot_write(&dir.join(name)))?;
        }
        eprint_line(format_args!(
            "written to {} and static_compute.md",
            dir.join("static_compute.json").display()
        ));
    }
    Ok(0)
}

/// A4 at 150 pixels per inch.
const PAGE: (u32, u32) = (1240, 1754);
const MAX_IMAGES: usize = 1024;
/// Pixels of a side.
const MAX_SIDE: u32 = 1 << 16;
/// The ratio of the sides above which processors refuse an image.
const MAX_RATIO: u32 = 200;

/// `1240x1754`.
fn picture(text: &str) -> Result<(u32, u32), String> {
    let side = |text: &str| text.parse().ok().filter(|side| (1..=MAX_SIDE).contains(side));
    let sides = text.split_once(['x', '×']).and_then(|(width, height)| Some((side(width)?, side(height)?)));
    let (width, height) = sides
        .ok_or_else(|| format!("expected width x height in pixels, up to {MAX_SIDE}, e.g. 1240x1754"))?;
    if width.max(height) > MAX_RATIO * width.min(height) {
        return Err(format!("one side is more than {MAX_RATIO} times the other"));
    }
    Ok((width, height))
}

/// The GPU to estimate for.
enum Gpu {
    /// A GPU of this machine: its driver reports memory and clocks.
    Here(Box<GpuInfo>),
    Known(&'static GpuPeaks),
}

impl Gpu {
    fn named(name: &str) -> Result<Gpu, Failure> {
        let known = GpuPeaks::named(name);
        let is_it = |gpu: &GpuInfo| {
            let row = GpuPeaks::matching(&gpu.name, gpu.mem_total_bytes);
            gpu.name.eq_ignore_ascii_case(name) || (row.is_some() && row == known)
        };
        let gpus = NvmlProbe::open().map_or_else(|_| Vec::new(), |probe| probe.gpus());
        match (gpus.into_iter().find(is_it), known) {
            (Some(info), _) => Ok(Gpu::Here(Box::new(info))),
            (None, Some(gpu)) => Ok(Gpu::Known(gpu)),
            (None, None) if is_part(name) => Err(Failure::usage(format_args!(
                "--gpu {name}: a part of a GPU (MIG or vGPU) has no known peaks; leave --gpu out and set {OVERRIDE} ({MEASURE} on that GPU)"
            ))),
            (None, None) => Err(Failure::usage(format_args!(
                "--gpu {name}: no peaks known for it{}; or leave --gpu out and set {OVERRIDE} ({MEASURE} on that GPU)",
                Names::near(name, &known_gpus())
            ))),
        }
    }

    fn peaks(&self, dtype: &str, given: GivenPeaks) -> Result<Peaks, String> {
        match self {
            Gpu::Here(info) => peaks_of(Some(info), dtype, given),
            Gpu::Known(gpu) => peaks(Some(gpu.name), dtype, given),
        }
    }

    fn for_cost(&self) -> CostGpu {
        match self {
            Gpu::Here(info) => CostGpu::reported(info),
            Gpu::Known(gpu) => CostGpu::from(*gpu),
        }
    }
}

/// The shape of the configured model: from its weights if some are given, else from a `config.json` or `model.arch`.
/// `bits` replaces the bits of the weights.
fn shape_of(config: &RunConfig, bits: Option<f64>) -> Result<Shape, Failure> {
    plain_shape_of(config, bits).map(|shape| shape.with_kv_cache(config.runtime.kv_cache_dtype))
}

fn plain_shape_of(config: &RunConfig, bits: Option<f64>) -> Result<Shape, Failure> {
    let dtype = config.model.nominal_dtype();
    let with_bits = |shape: Shape| match bits {
        Some(bits) => shape.quantised(bits),
        None => shape,
    };
    let in_file = |path: &Path| {
        let in_file = |cause| SpecError::InFile { path: path.to_owned(), cause: Box::new(cause) };
        spec::read_config_json(path).and_then(|json| read_shape(json, dtype, bits).map_err(in_file))
    };
    if let (None, Some(scheme)) = (bits, config.model.dtype.scheme()) {
        if let Some(published) = published_arch(config, scheme) {
            return Shape::from_hf(&published, dtype).map_err(Failure::usage);
        }
        let (model, _) = Model::open(config, &kind_of(config.runtime.name)).map_err(Failure::usage)?;
        let unknown = || Failure::usage("cannot estimate this architecture in a quantised type");
        return model.shape(dtype).ok_or_else(unknown);
    }
    match (&config.model.weights, &config.model.config_json) {
        (Weights::Path(path), _) => match Model::open(config, &kind_of(config.runtime.name)) {
            Ok((model, _)) => model.shape(dtype).map(with_bits).ok_or_else(|| {
                let path = path.display();
                Failure::usage(format_args!(
                    "cannot estimate the model in {path}: its architecture is not supported"
                ))
            }),
            // `cost` also estimates models that the engine cannot run.
            Err(error) => in_file(&path.join("config.json")).map_err(|_| Failure::usage(error)),
        },
        (_, Some(path)) => in_file(Path::new(path)).map_err(Failure::usage),
        (_, None) => read_shape(config.model.arch.clone(), dtype, bits).map_err(Failure::usage),
    }
}

/// gpt-oss is published in MXFP4 only: the experts in 4.25 bits, all else in bf16. Synthetic weights of that type have all
/// else in Q8_0, as llama.cpp's files do.
fn published_arch(config: &RunConfig, scheme: Scheme) -> Option<Value> {
    let model = &config.model;
    let is_published = model.arch["model_type"] == "gpt_oss" && matches!(scheme, Scheme::Mxfp4);
    if !is_published || matches!(model.weights, Weights::Path(_)) || model.config_json.is_some() {
        return None;
    }
    let mut arch = model.arch.clone();
    let unquantised =
        ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"];
    arch["quantization_config"] = json!({"quant_method": "mxfp4", "modules_to_not_convert": unquantised});
    Some(arch)
}

/// The shape in a `config.json`. `bits` replaces the stated bits of the weights.
fn read_shape(mut json: Value, dtype: Dtype, bits: Option<f64>) -> Result<Shape, SpecError> {
    let Some(bits) = bits else { return Shape::from_hf(&json, dtype) };
    if let Some(object) = json.as_object_mut() {
        object.remove("quantization_config");
    }
    Ok(Shape::from_hf(&json, dtype)?.quantised(bits))
}
