//! The host: cores, memory, this process, package power.

pub mod procfs;
pub mod rapl;

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Instant,
};

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use self::{
    procfs::{CoreTicks, TICKS_PER_S},
    rapl::PackagePower,
};
use super::HostProbe;
use llmprof_base::own_children::own_children;
use llmprof_event::{AllocatorSample, HostInfo, HostSample, Stamp};
use llmprof_workload::heap;

/// Maximum clock files: reading a core's clock may wake the core, so on machines with many cores a few represent all.
const MAX_FREQ_FILES: usize = 8;
/// `/proc/cpuinfo` takes about 20 µs per core.
const MAX_CPUINFO_CORES: usize = 16;

/// Reads `/proc` and `/sys` if they exist; elsewhere the operating system provides less.
pub struct HostReader {
    proc: PathBuf,
    info: HostInfo,
    package: Result<PackagePower, String>,
    freq: FreqSource,
    portable: Option<System>,
    last: Option<Counters>,
    text: String,
}

/// Counters whose differences are rates.
struct Counters {
    at: Instant,
    cores: Vec<CoreTicks>,
    process_ticks: Option<u64>,
}

enum FreqSource {
    /// One file per core, in kHz.
    Files(Vec<PathBuf>),
    CpuInfo,
    None,
}

impl HostReader {
    pub fn open() -> HostReader {
        HostReader::with_roots(Path::new("/proc"), Path::new("/sys"))
    }

    /// Like [`HostReader::open`], with other paths for `/proc` and `/sys`.
    pub fn with_roots(proc: &Path, sys: &Path) -> HostReader {
        let package = PackagePower::open(&sys.join("class/powercap"));
        let system = System::new_with_specifics(
            RefreshKind::nothing()
                .with_cpu(CpuRefreshKind::nothing().with_usage())
                .with_memory(MemoryRefreshKind::nothing().with_ram()),
        );
        let info = host_info(system.as_ref().ok(), &package);
        let portable = if proc.join("stat").exists() { None } else { system.ok() };
        let mut reader = HostReader {
            freq: FreqSource::find(sys, info.cores as usize),
            proc: proc.to_owned(),
            info,
            package,
            portable,
            last: None,
            text: String::new(),
        };
        reader.last = reader.counters();
        reader
    }

    fn read(&mut self, path: &Path) -> Option<&str> {
        read_into(&mut self.text, path)
    }

    /// The sum over this process and those that it has started for the run; `None` if this one cannot be read.
    fn sum_of_own(&mut self, file: &str, value: fn(&str) -> Option<u64>) -> Option<u64> {
        let own = self.proc.join("self").join(file);
        let mut sum = self.read(&own).and_then(value)?;
        for pid in own_children() {
            let of_child = self.proc.join(pid.to_string()).join(file);
            sum = sum.saturating_add(self.read(&of_child).and_then(value).unwrap_or(0));
        }
        Some(sum)
    }

    fn counters(&mut self) -> Option<Counters> {
        let stat = self.proc.join("stat");
        let cores = procfs::core_ticks(self.read(&stat)?);
        let process_ticks = self.sum_of_own("stat", procfs::process_ticks);
        Some(Counters { at: Instant::now(), cores, process_ticks })
    }

    fn sample_portable(system: &mut System) -> HostSample {
        system.refresh_cpu_usage();
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        HostSample {
            core_pct: system.cpus().iter().map(|cpu| cpu.usage()).collect(),
            mem_used_bytes: Some(system.used_memory()).filter(|&bytes| bytes > 0),
            ..HostSample::default()
        }
    }

    fn freq_mhz(&mut self) -> Option<f32> {
        let clocks_mhz: Vec<f32> = match &self.freq {
            FreqSource::None => return None,
            FreqSource::CpuInfo => procfs::clocks_mhz(read_into(&mut self.text, &self.proc.join("cpuinfo"))?),
            FreqSource::Files(files) => files
                .iter()
                .filter_map(|file| read_into(&mut self.text, file)?.trim().parse::<f32>().ok())
                .map(|khz| khz / 1e3)
                .collect(),
        };
        (!clocks_mhz.is_empty()).then(|| clocks_mhz.iter().sum::<f32>() / clocks_mhz.len() as f32)
    }
}

impl HostProbe for HostReader {
    fn info(&self) -> HostInfo {
        self.info.clone()
    }

    fn sample(&mut self, _now: Stamp) -> HostSample {
        let package_power_w = self.package.as_mut().ok().and_then(|package| package.read_w(Instant::now()));
        if let Some(system) = &mut self.portable {
            return HostSample { package_power_w, ..HostReader::sample_portable(system) };
        }
        let counters = self.counters();
        let mut sample = HostSample { package_power_w, freq_mhz: self.freq_mhz(), ..HostSample::default() };
        if let (Some(last), Some(now)) = (&self.last, &counters) {
            sample.core_pct = procfs::busy_pct(&last.cores, &now.cores);
            let passed_s = now.at.duration_since(last.at).as_secs_f64();
            sample.process_pct = last.process_ticks.zip(now.process_ticks).filter(|_| passed_s > 0.0).map(
                |(before, after)| {
                    (after.saturating_sub(before) as f64 / TICKS_PER_S / passed_s * 100.0) as f32
                },
            );
        }
        self.last = counters;
        let meminfo = self.proc.join("meminfo");
        sample.mem_used_bytes = self.read(&meminfo).and_then(procfs::mem_used_bytes);
        sample.process_rss_bytes = self.sum_of_own("status", procfs::rss_bytes);
        sample
    }

    fn heap(&mut self) -> Option<AllocatorSample> {
        heap::sample()
    }
}

impl FreqSource {
    fn find(sys: &Path, cores: usize) -> FreqSource {
        let stride = cores.div_ceil(MAX_FREQ_FILES).max(1);
        let files: Vec<PathBuf> = (0..cores)
            .step_by(stride)
            .map(|core| sys.join(format!("devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")))
            .filter(|file| file.exists())
            .collect();
        if !files.is_empty() {
            FreqSource::Files(files)
        } else if cores <= MAX_CPUINFO_CORES {
            FreqSource::CpuInfo
        } else {
            FreqSource::None
        }
    }
}

fn host_info(system: Option<&System>, package: &Result<PackagePower, String>) -> HostInfo {
    let cpus = system.map(System::cpus).unwrap_or_default();
    let cores = match cpus.len() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        cores => cores,
    };
    let brand = cpus.first().map(|cpu| cpu.brand().trim().to_owned()).filter(|brand| !brand.is_empty());
    HostInfo {
        cpu: brand.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: cores as u32,
        os: os_name(),
        mem_total_bytes: system.map(System::total_memory).filter(|&bytes| bytes > 0),
        power_source: match package {
            Ok(package) => package.source().to_owned(),
            Err(reason) => reason.clone(),
        },
    }
}

fn os_name() -> String {
    System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned())
}

/// The file's text in a reused buffer.
fn read_into<'a>(buffer: &'a mut String, path: &Path) -> Option<&'a str> {
    buffer.clear();
    File::open(path).ok()?.read_to_string(buffer).ok()?;
    Some(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_gives_plausible_values() {
        let mut reader = HostReader::open();
        let info = reader.info();
        assert!(info.cores >= 1 && !info.cpu.is_empty() && !info.os.is_empty(), "{info:?}");
        assert!(!info.power_source.is_empty(), "{info:?}");
        // Until this thread has had 50 ms of a core, however busy the cores are.
        let cpu_ms = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            1000 * now.tv_sec + now.tv_nsec / 1_000_000
        };
        let until = cpu_ms() + 50;
        while cpu_ms() < until {}
        let sample = reader.sample(Stamp(0));
        if cfg!(target_os = "linux") {
            assert_eq!(sample.core_pct.len(), info.cores as usize, "{sample:?}");
            assert!(sample.core_pct.iter().all(|pct| (0.0..=100.0).contains(pct)), "{sample:?}");
            let (used, total) = (sample.mem_used_bytes.unwrap(), info.mem_total_bytes.unwrap());
            assert!(0 < used && used < total, "{used} of {total}");
            let rss = sample.process_rss_bytes.unwrap();
            assert!((1 << 18..total).contains(&rss), "{rss}");
            assert!(sample.process_pct.unwrap() > 0.0, "it was spinning: {sample:?}");
        }
    }

    #[test]
    fn a_host_without_proc_is_still_sampled() {
        let nowhere = tempfile::tempdir().unwrap();
        let mut reader = HostReader::with_roots(nowhere.path(), nowhere.path());
        let sample = reader.sample(Stamp(0));
        assert_eq!(sample.process_rss_bytes, None);
        assert_eq!(sample.package_power_w, None);
        assert!(reader.info().power_source.contains("powercap"), "{:?}", reader.info());
    }

    #[test]
    fn machines_with_many_cores_read_a_few_clocks() {
        let sys = tempfile::tempdir().unwrap();
        for core in 0..64 {
            let folder = sys.path().join(format!("devices/system/cpu/cpu{core}/cpufreq"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("scaling_cur_freq"), format!("{}\n", 2_000_000 + core)).unwrap();
        }
        match FreqSource::find(sys.path(), 64) {
            FreqSource::Files(files) => assert_eq!(files.len(), MAX_FREQ_FILES),
            _ => panic!("the files exist"),
        }
        assert!(matches!(FreqSource::find(Path::new("/nowhere"), 64), FreqSource::None));
        assert!(matches!(FreqSource::find(Path::new("/nowhere"), 4), FreqSource::CpuInfo));
    }
}
