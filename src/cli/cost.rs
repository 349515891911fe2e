//! `cost`: the estimated cost of a model on a GPU, without running it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{Failure, args::ConfigArgs, print};
use crate::{
    analysis::peaks::{GpuPeaks, OVERRIDE, Peaks, peaks, peaks_of},
    config::{RunConfig, Weights},
    event::GivenPeaks,
    model::{Shape, SpecError, spec},
    process::eprint_line,
    report::cost::{CostEstimate, CostGpu, CostQuery, known_gpus},
    run::inputs::Model,
    telemetry::{GpuProbe, nvml::NvmlProbe},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui cost --model llama3_1_8b --gpu h100 model.dtype=bf16
  llmprof-tui cost --model qwen2_5_7b --gpu rtx_4090 --weight-bits 4.5 dataset.prompt_tokens=4096
  llmprof-tui cost model.config_json=mixtral/config.json --gpu h200 --json";

#[derive(Debug, Args)]
pub(super) struct CostArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    /// The GPU: h100, rtx_4090, … or the name that the driver reports
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Bits per weight of a quantised model: 4.5, 8
    #[arg(long, value_name = "BITS")]
    weight_bits: Option<f64>,
    /// Write static_compute.json and static_compute.md into this directory
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &CostArgs) -> Result<u8, Failure> {
    let config = args.config.compose()?.config;
    let mut shape = shape_of(&config)?;
    if let Some(bits) = args.weight_bits {
        if !(0.5..=64.0).contains(&bits) {
            return Err(Failure::usage(format_args!("--weight-bits {bits}: expected 0.5 to 64 bits")));
        }
        shape = shape.quantised(bits);
    }
    let given =
        GivenPeaks { flops: config.hardware.peaks.flops, bytes_per_s: config.hardware.peaks.bytes_per_s };
    let (gpu, peaks) = match &args.gpu {
        Some(name) => gpu_and_peaks(name, &shape.dtype, given)?,
        None => (None, peaks(None, &shape.dtype, given)),
    };
    let estimate = CostEstimate::new(CostQuery {
        model: config.model.name.clone(),
        shape,
        batch: u64::from(config.runtime.batch_size),
        prompt_tokens: u64::from(config.dataset.prompt_tokens),
        output_tokens: u64::from(config.infer.max_new_tokens),
        gpu,
        peaks,
    });
    let json = serde_json::to_string_pretty(&estimate.json()).map_err(Failure::work)?;
    print(&if args.json { json.clone() } else { estimate.text() })?;
    if let Some(dir) = &args.out {
        for (name, content) in
            [("static_compute.json", json + "\n"), ("static_compute.md", estimate.markdown())]
        {
            let path = dir.join(name);
            fs::write(&path, content).map_err(Failure::cannot_write(&path))?;
        }
        eprint_line(format_args!(
            "written to {} and static_compute.md",
            dir.join("static_compute.json").display()
        ));
    }
    Ok(0)
}

/// The GPU called `name`: one of this machine, of which the driver reports memory and clocks, else the one in the table.
fn gpu_and_peaks(
    name: &str,
    dtype: &str,
    given: GivenPeaks,
) -> Result<(Option<CostGpu>, Result<Peaks, String>), Failure> {
    let known = GpuPeaks::named(name);
    let here = NvmlProbe::open().map_or_else(|_| Vec::new(), |probe| probe.gpus()).into_iter().find(|gpu| {
        let row = GpuPeaks::matching(&gpu.name, gpu.mem_total_bytes);
        gpu.name.eq_ignore_ascii_case(name) || (row.is_some() && row == known)
    });
    match (here, known) {
        (Some(info), _) => Ok((Some(CostGpu::reported(&info)), peaks_of(Some(&info), dtype, given))),
        (None, Some(gpu)) => Ok((Some(gpu.into()), peaks(Some(gpu.name), dtype, given))),
        (None, None) => Err(Failure::usage(format_args!(
            "--gpu {name}: no peaks known for it; known GPUs: {}; or leave --gpu out and give {OVERRIDE}",
            known_gpus()
        ))),
    }
}

/// The shape of the configured model: from its weights where some are given, else from a `config.json` or `model.arch`.
fn shape_of(config: &RunConfig) -> Result<Shape, Failure> {
    let dtype = config.model.dtype;
    if let Weights::Path(path) = &config.model.weights {
        return Model::open(config).map_err(Failure::usage)?.shape(dtype).ok_or_else(|| {
            let path = path.display();
            Failure::usage(format_args!(
                "cannot estimate the model in {path}: its architecture is not supported"
            ))
        });
    }
    let shape = match &config.model.config_json {
        Some(path) => spec::read_config_json(Path::new(path)).and_then(|json| {
            Shape::from_hf(&json, dtype)
                .map_err(|cause| SpecError::InFile { path: path.into(), cause: Box::new(cause) })
        }),
        None => Shape::from_hf(&config.model.arch, dtype),
    };
    shape.map_err(Failure::usage)
}
