//! CPU package power from RAPL energy counters under Linux's `powercap`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

/// The packages of this machine; power is their sum.
#[derive(Debug)]
pub struct PackagePower {
    packages: Vec<Package>,
    source: String,
    last: Option<Instant>,
}

#[derive(Debug)]
struct Package {
    energy_file: PathBuf,
    /// The counter wraps around after this value.
    range_uj: Option<u64>,
    last_uj: u64,
}

impl PackagePower {
    /// Opens the packages under `powercap`; the error is a message for the screen.
    pub fn open(powercap: &Path) -> Result<PackagePower, String> {
        let mut packages = Vec::new();
        let mut denied = None;
        for domain in domains(powercap) {
            // Cores, memory and the platform are domains too; only packages add up.
            let name = fs::read_to_string(domain.join("name")).unwrap_or_default();
            if !name.starts_with("package") {
                continue;
            }
            let energy_file = domain.join("energy_uj");
            match read_uj(&energy_file) {
                Ok(last_uj) => {
                    let range_uj = read_uj(&domain.join("max_energy_range_uj")).ok();
                    packages.push(Package { energy_file, range_uj, last_uj });
                }
                Err(error) => denied = Some((energy_file, error)),
            }
        }
        match (packages.len(), denied) {
            (0, None) => Err(format!("no CPU package under {}: RAPL is not available", powercap.display())),
            (_, Some((file, error))) if error.kind() == io::ErrorKind::PermissionDenied => Err(format!(
                "{} is readable by root only; run `sudo chmod a+r {}`",
                file.display(),
                powercap.join("intel-rapl:*/energy_uj").display()
            )),
            (_, Some((file, error))) => Err(format!("{}: {error}", file.display())),
            (count, None) => {
                let packages_word = if count == 1 { "package" } else { "packages" };
                let source = format!("RAPL, {count} {packages_word}");
                Ok(PackagePower { packages, source, last: Some(Instant::now()) })
            }
        }
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// Mean power since the last call; `None` when a counter could not be read or no time has passed.
    pub fn read_w(&mut self, now: Instant) -> Option<f32> {
        let passed_s = self.last.replace(now).map(|last| now.saturating_duration_since(last).as_secs_f64());
        let mut spent_uj = Some(0u64);
        for package in &mut self.packages {
            let spent = read_uj(&package.energy_file).ok().and_then(|uj| {
                let before = std::mem::replace(&mut package.last_uj, uj);
                spent_uj_between(before, uj, package.range_uj)
            });
            spent_uj = spent_uj.zip(spent).map(|(sum, spent)| sum.saturating_add(spent));
        }
        let passed_s = passed_s.filter(|&secs| secs > 0.0)?;
        Some((spent_uj? as f64 / 1e6 / passed_s) as f32)
    }
}

/// The difference of two readings of a counter that may have wrapped around once.
fn spent_uj_between(before: u64, after: u64, range_uj: Option<u64>) -> Option<u64> {
    match after.checked_sub(before) {
        Some(spent) => Some(spent),
        None => range_uj?.checked_sub(before)?.checked_add(after),
    }
}

fn domains(powercap: &Path) -> Vec<PathBuf> {
    let mut domains: Vec<PathBuf> = fs::read_dir(powercap)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("intel-rapl:"))
        .map(|entry| entry.path())
        .collect();
    domains.sort();
    domains
}

fn read_uj(file: &Path) -> io::Result<u64> {
    fs::read_to_string(file)?
        .trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn domain(powercap: &Path, id: &str, name: &str, uj: u64) {
        let folder = powercap.join(id);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        fs::write(folder.join("energy_uj"), format!("{uj}\n")).unwrap();
        fs::write(folder.join("max_energy_range_uj"), "1000000000\n").unwrap();
    }

    #[test]
    fn packages_add_up_and_counters_may_wrap_around() {
        let powercap = tempfile::tempdir().unwrap();
        let at = powercap.path();
        domain(at, "intel-rapl:0", "package-0", 5_000_000);
        domain(at, "intel-rapl:1", "package-1", 990_000_000);
        domain(at, "intel-rapl:0:0", "core", 1);
        domain(at, "intel-rapl:2", "psys", 1);
        let mut power = PackagePower::open(at).unwrap();
        assert_eq!(power.source(), "RAPL, 2 packages");
        let start = Instant::now();
        power.last = Some(start);
        domain(at, "intel-rapl:0", "package-0", 105_000_000);
        domain(at, "intel-rapl:1", "package-1", 40_000_000);
        assert_eq!(power.read_w(start + Duration::from_secs(1)), Some(150.0));
        assert_eq!(power.read_w(start + Duration::from_secs(1)), None, "no time has passed");
        fs::remove_file(at.join("intel-rapl:1/energy_uj")).unwrap();
        assert_eq!(power.read_w(start + Duration::from_secs(2)), None, "power needs all packages");
    }

    #[test]
    fn differences() {
        let cases = [
            (10, 30, None, Some(20)),
            (30, 10, Some(100), Some(80)),
            (30, 10, None, None),
            (300, 10, Some(100), None),
        ];
        for (before, after, range, expected) in cases {
            assert_eq!(spent_uj_between(before, after, range), expected, "{before} → {after} of {range:?}");
        }
    }

    #[test]
    fn errors_name_the_reason() {
        let powercap = tempfile::tempdir().unwrap();
        assert!(PackagePower::open(powercap.path()).unwrap_err().contains("RAPL is not available"));
        domain(powercap.path(), "intel-rapl:0", "package-0", 1);
        fs::write(powercap.path().join("intel-rapl:0/energy_uj"), "lots").unwrap();
        assert!(PackagePower::open(powercap.path()).unwrap_err().contains("energy_uj"));
    }
}
