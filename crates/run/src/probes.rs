//! Chooses the probes of a run from its configuration: NVML and the real host, or simulated ones.

use crate::{plan::Plan, work::kind_of};
use llm_cost::{Shape, Step};
use llmprof_config::{Probe, RunConfig};
use llmprof_event::{Activity, Phase, WorkKind};
use llmprof_sources::{
    sim::{
        SimTiming,
        scenario::{Scenario, UnknownScenario},
        telemetry::{SimHost, SimProbe},
    },
    telemetry::{
        GpuProbe, HostProbe, Sampler, Thermometer, absent::Absence, host::HostReader, nvml::NvmlProbe,
        sampler::profiled_gpu,
    },
};

enum Source {
    Simulated,
    Nvml,
}

fn is_simulated(config: &RunConfig) -> bool {
    kind_of(config.runtime.name) == WorkKind::Sim
}

fn source(config: &RunConfig) -> Result<Source, Absence> {
    match config.telemetry.probe {
        _ if !config.profiling.nvml.enable => {
            Err(Absence::TurnedOff { setting: "profiling.nvml.enable=false" })
        }
        _ if config.telemetry.dcgm.is_some() => Err(Absence::Elsewhere),
        Probe::None => Err(Absence::TurnedOff { setting: "telemetry.probe=none" }),
        Probe::Sim => Ok(Source::Simulated),
        Probe::Auto if is_simulated(config) => Ok(Source::Simulated),
        Probe::Auto | Probe::Nvml => Ok(Source::Nvml),
    }
}

/// The model on a simulated GPU.
#[derive(Default)]
struct SimModel {
    weight_bytes: u64,
    cache_bytes: u64,
    /// Its shape, if it is known, and a prefill and a decode step.
    steps: Option<(Shape, [Step; 2])>,
}

impl SimModel {
    fn from_plan(plan: &Plan) -> SimModel {
        let (inputs, dtype) = (&plan.inputs, plan.dtype);
        let kv_cache = plan.composed.config.runtime.kv_cache_dtype;
        let workload = plan.workload();
        let (batch, prompt, output) = (
            u64::from(workload.batch),
            u64::from(workload.prompt_tokens()),
            u64::from(workload.output_tokens),
        );
        let steps = [Step::prefill(batch, prompt), Step::decode(batch, prompt + output / 2)];
        SimModel {
            weight_bytes: plan.weight_bytes(),
            cache_bytes: inputs.model.kv_bytes_per_position(dtype, kv_cache) * batch * (prompt + output),
            steps: inputs.model.shape(dtype).map(|shape| (shape.with_kv_cache(kv_cache), steps)),
        }
    }

    fn probe(self, scenario: Scenario, activity: &Activity, config: &RunConfig) -> SimProbe {
        let bytes = self.weight_bytes + self.cache_bytes;
        let probe = SimProbe::new(scenario, activity.clone(), config.runtime.seed, bytes);
        let Some((shape, [prefill, decode])) = self.steps else { return probe };
        let timing = SimTiming::new(shape, scenario.card().model(), config.runtime.cuda_graphs);
        probe.with_load(timing.load(Phase::Prefill, prefill), timing.load(Phase::Decode, decode))
    }
}

/// The sampler for `config`. `activity` is the phase of the workload, `model` the model on a simulated GPU, `uuid`
/// CUDA's identifier of the GPU of the workload, if known.
fn sampler(
    config: &RunConfig,
    activity: &Activity,
    model: SimModel,
    uuid: Option<&str>,
) -> Result<Sampler, UnknownScenario> {
    let weight_bytes = model.weight_bytes;
    let seed = config.runtime.seed;
    let probe: Result<Box<dyn GpuProbe>, Absence> = match source(config) {
        Err(absence) => Err(absence),
        Ok(Source::Nvml) => NvmlProbe::open().map(|probe| Box::new(probe) as _),
        Ok(Source::Simulated) => {
            let name = config.telemetry.scenario.as_ref().unwrap_or(&config.runtime.sim.scenario);
            let scenario = Scenario::named(name)?.with_seed(seed);
            Ok(Box::new(model.probe(scenario, activity, config)))
        }
    };
    let host = config.profiling.host.enable.then(|| -> Box<dyn HostProbe> {
        // With readings of the real host, two simulated runs with one seed would differ.
        match is_simulated(config) {
            true => Box::new(SimHost::new(activity.clone(), seed, weight_bytes)),
            false => Box::new(HostReader::open()),
        }
    });
    Ok(Sampler::for_run(config, probe, host, uuid))
}

/// The sampler of `plan`. "auto" is resolved: the sampler marks the GPU in use.
pub fn sampler_for(plan: &Plan, activity: &Activity) -> Result<Sampler, UnknownScenario> {
    let mut config = plan.composed.config.clone();
    config.runtime.device = plan.device.to_string();
    sampler(&config, activity, SimModel::from_plan(plan), plan.gpu_uuid().as_deref())
}

/// The thermometer for `config`; a simulated GPU starts at `last_temp_c`.
pub fn thermometer(config: &RunConfig, last_temp_c: Option<f32>) -> Result<Thermometer, Absence> {
    match source(config)? {
        Source::Simulated => {
            // Scripted faults only happen under load.
            let probe = SimProbe::new(Scenario::steady(), Activity::default(), config.runtime.seed, 0);
            Ok(Thermometer::new(Box::new(probe.starting_at(last_temp_c)), 0))
        }
        Source::Nvml => {
            let probe = NvmlProbe::open()?;
            let gpu = profiled_gpu(config, &probe.gpus(), None).unwrap_or(config.hardware.device_index);
            Ok(Thermometer::new(Box::new(probe), gpu))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_config::{Runtime, built_in, compose};
    use llmprof_event::{Clock, Event, GpuInfo, Phase, Stamp, channel};

    fn config(runtime: Runtime, probe: Probe) -> RunConfig {
        let mut config = compose(&built_in(), &["hardware.isolation.check=false".to_owned()]).unwrap().config;
        config.runtime.name = runtime;
        config.telemetry.probe = probe;
        config
    }

    /// The announcement of the sampler of `config`: the source of the GPU, or the reason why there is none, and the
    /// host.
    fn announced(config: &RunConfig) -> Vec<String> {
        let sampler = sampler(config, &Activity::default(), SimModel::default(), None).unwrap();
        let (tx, mut rx) = channel(Clock::virtual_clock());
        sampler.announce(&tx);
        let mut found = Vec::new();
        while let Ok(envelope) = rx.try_recv() {
            match envelope.event {
                Event::GpuFound(info) => found.push(info.source.to_string()),
                Event::GpuAbsent(absent) => found.push(absent.reason),
                Event::HostFound(info) => found.push(format!("host {}", info.os == "simulated")),
                other => panic!("{other:?}"),
            }
        }
        found
    }

    #[test]
    fn the_config_chooses_the_probes() {
        assert_eq!(announced(&config(Runtime::Sim, Probe::Auto)), ["sim", "host true"]);
        assert_eq!(announced(&config(Runtime::Candle, Probe::Sim)), ["sim", "host false"]);
        let off = announced(&config(Runtime::Candle, Probe::None));
        assert_eq!(off, ["GPU telemetry is off: telemetry.probe=none", "host false"]);
        let mut quiet = config(Runtime::Sim, Probe::Auto);
        quiet.profiling.nvml.enable = false;
        quiet.profiling.host.enable = false;
        assert_eq!(announced(&quiet), ["GPU telemetry is off: profiling.nvml.enable=false"]);
        let real = announced(&config(Runtime::Candle, Probe::Auto));
        assert!(real[0] == "nvml" || real[0].starts_with("NVML ") || real[0].contains("driver"), "{real:?}");
    }

    #[test]
    fn the_probe_may_have_its_own_scenario() {
        let mut config = config(Runtime::Sim, Probe::Auto);
        config.telemetry.scenario = Some("sunny".to_owned());
        assert!(sampler(&config, &Activity::default(), SimModel::default(), None).is_err());
        config.telemetry.scenario = Some("steady".to_owned());
        let activity = Activity::default();
        activity.set(Phase::Prefill);
        let mut sampler = sampler(&config, &activity, SimModel::default(), None).unwrap();
        let (tx, mut rx) = channel(Clock::virtual_clock());
        sampler.sample_due(Stamp(0), &tx);
        match rx.try_recv().unwrap().event {
            Event::GpuSample(sample) => assert_eq!(sample.reasons, Some(0), "steady has no power cap"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_device_selects_the_profiled_gpu() {
        for (device, expected) in [("auto", Some(2)), ("cuda", Some(2)), ("cuda:1", Some(1)), ("cpu", None)] {
            let mut config = config(Runtime::Candle, Probe::Auto);
            config.runtime.device = device.to_owned();
            config.hardware.device_index = 2;
            let gpus = [0, 1, 2].map(|index| GpuInfo { index, ..GpuInfo::default() });
            assert_eq!(profiled_gpu(&config, &gpus, None), expected, "{device}");
        }
    }
}
