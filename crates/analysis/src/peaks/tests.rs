use super::*;

fn info(name: &str, mem_mib: u64) -> GpuInfo {
    GpuInfo { name: name.to_owned(), mem_total_bytes: Some(mem_mib << 20), ..GpuInfo::default() }
}

#[test]
fn gpus_are_found_by_the_names_of_drivers() {
    for (name, wanted) in [
        ("NVIDIA H200", Some("h200")),
        ("NVIDIA H200 NVL", Some("h200_nvl")),
        ("NVIDIA GH200 480GB", Some("gh200")),
        ("NVIDIA GH200 120GB", Some("gh200")),
        ("NVIDIA GH200 144G HBM3e", Some("gh200_144gb")),
        ("NVIDIA H100 80GB HBM3", Some("h100")),
        ("NVIDIA H100 PCIe", Some("h100_pcie")),
        ("NVIDIA H100 NVL", Some("h100_nvl")),
        ("NVIDIA H100 64GB HBM2", None),
        ("NVIDIA H800", Some("h800")),
        ("NVIDIA H800 PCIe", Some("h800_pcie")),
        ("NVIDIA H20", Some("h20")),
        ("NVIDIA H20-3e", Some("h20_141gb")),
        ("NVIDIA A100-SXM4-40GB", Some("a100_40gb")),
        ("NVIDIA A100-PCIE-40GB", Some("a100_40gb")),
        ("NVIDIA A100-SXM4-80GB", Some("a100_80gb")),
        ("NVIDIA A100 80GB PCIe", Some("a100_80gb_pcie")),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA A800-SXM4-80GB", Some("a800_80gb")),
        ("NVIDIA A800 80GB PCIe", Some("a800_80gb_pcie")),
        ("NVIDIA L40S", Some("l40s")),
        ("NVIDIA L40", Some("l40")),
        ("NVIDIA L20", Some("l20")),
        ("NVIDIA L4", Some("l4")),
        ("NVIDIA A10", Some("a10")),
        ("NVIDIA A10G", Some("a10g")),
        ("NVIDIA A16", Some("a16")),
        ("NVIDIA A2", Some("a2")),
        ("NVIDIA GeForce RTX 4090", Some("rtx_4090")),
        ("NVIDIA GeForce RTX 4090 D", Some("rtx_4090_d")),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", Some("rtx_4070_ti_super")),
        ("NVIDIA GeForce RTX 4070 SUPER", Some("rtx_4070_super")),
        ("NVIDIA GeForce RTX 4070 Ti", Some("rtx_4070_ti")),
        ("NVIDIA GeForce RTX 4070", Some("rtx_4070")),
        ("NVIDIA GeForce RTX 5090", Some("rtx_5090")),
        ("NVIDIA GeForce RTX 5090 D", None),
        ("NVIDIA GeForce RTX 5060 Ti", Some("rtx_5060_ti")),
        ("NVIDIA GeForce RTX 3090", Some("rtx_3090")),
        ("NVIDIA GeForce RTX 3090 Ti", Some("rtx_3090_ti")),
        ("NVIDIA RTX A2000", Some("rtx_a2000")),
        ("NVIDIA RTX A2000 12GB", Some("rtx_a2000_12gb")),
        ("NVIDIA RTX A6000", Some("rtx_a6000")),
        ("NVIDIA RTX 2000 Ada Generation", Some("rtx_2000_ada")),
        ("NVIDIA RTX 4000 SFF Ada Generation", Some("rtx_4000_sff_ada")),
        ("NVIDIA RTX 6000 Ada Generation", Some("rtx_6000_ada")),
        ("Quadro RTX 6000", None),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", Some("rtx_pro_6000")),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", Some("rtx_pro_6000_max_q")),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", Some("rtx_pro_6000_server")),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", Some("rtx_pro_5000_72gb")),
        ("NVIDIA RTX PRO 4000 Blackwell", Some("rtx_pro_4000")),
        ("NVIDIA B200", Some("b200")),
        ("NVIDIA GB200", Some("gb200")),
        ("NVIDIA B300 SXM6 AC", Some("b300")),
        ("NVIDIA GB300", Some("gb300")),
        ("NVIDIA GB10", Some("gb10")),
        ("NVIDIA Thor", Some("jetson_thor")),
        ("NVIDIA Jetson AGX Orin 64GB", Some("jetson_agx_orin_64gb")),
        ("Orin (nvgpu)", None),
        ("Tesla V100-SXM2-16GB", Some("v100")),
        ("Tesla V100-SXM2-32GB", Some("v100_32gb")),
        ("Tesla V100-PCIE-16GB", Some("v100_pcie")),
        ("Tesla V100-PCIE-32GB", Some("v100_pcie_32gb")),
        ("Tesla V100S-PCIE-32GB", Some("v100s")),
        ("Tesla T4", Some("t4")),
        ("h100", Some("h100")),
        ("H100-PCIe", Some("h100_pcie")),
        ("rtx_4090", Some("rtx_4090")),
        ("NVIDIA GeForce GT 1030", None),
        ("", None),
    ] {
        assert_eq!(GpuPeaks::named(name).map(|gpu| gpu.name), wanted, "{name}");
    }
    for gpu in GPUS {
        assert_eq!(GpuPeaks::named(gpu.name).map(|found| found.name), Some(gpu.name));
    }
}

#[test]
fn parts_of_a_gpu_are_not_the_gpu() {
    for name in [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "GRID A100-10C",
        "GRID A100D-1-10C",
        "NVIDIA A40-8Q",
        "NVIDIA L40S-48C",
        "NVIDIA A10-24Q",
        "GRID T4-16Q",
    ] {
        assert_eq!(GpuPeaks::named(name), None, "{name}");
        let why = peaks(Some(name), "f16", GivenPeaks::default()).unwrap_err();
        assert!(why.contains("a part of a GPU"), "{why}");
    }
    // In MIG mode, the driver's name is that of the whole GPU.
    let whole = info("NVIDIA H100 80GB HBM3", 81_559);
    assert!(peaks_of(Some(&whole), "f16", GivenPeaks::default()).is_ok());
    for part in [
        GpuInfo { mig: Some(true), ..whole.clone() },
        GpuInfo { virtualization: Some("vGPU".to_owned()), ..whole.clone() },
        GpuInfo { mem_total_bytes: Some(10 << 30), ..whole.clone() },
    ] {
        assert!(peaks_of(Some(&part), "f16", GivenPeaks::default()).is_err(), "{part:?}");
    }
}

#[test]
fn memory_decides_between_gpus_of_one_name() {
    for (name, mib, wanted) in [
        ("NVIDIA GeForce RTX 3080", 12_288, "rtx_3080_12gb"),
        ("NVIDIA GeForce RTX 3080", 10_240, "rtx_3080"),
        ("NVIDIA GeForce RTX 3060", 8_192, "rtx_3060_8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16_380, "rtx_4060_ti_16gb"),
        ("NVIDIA GeForce RTX 5060 Ti", 8_151, "rtx_5060_ti_8gb"),
        ("NVIDIA A40", 49_140, "a40"),
        ("NVIDIA L40S", 46_068, "l40s"),
    ] {
        assert_eq!(GpuPeaks::matching(name, Some(mib << 20)).map(|gpu| gpu.name), Some(wanted), "{name}");
    }
}

#[test]
fn figures_are_dense_and_plausible() {
    for gpu in GPUS {
        let f16 = gpu.flops_of("f16").unwrap();
        assert!(f16 <= 2500e12 && f16 >= gpu.flops_of("f32").unwrap(), "{}", gpu.name);
        assert!(gpu.flops_of("fp8").is_none_or(|fp8| fp8 == 2.0 * f16 || (fp8 / f16 - 2.0).abs() < 1e-3));
        // Plausible ridge points, in FLOP per byte; that of the H20 is low, those of GPUs with LPDDR memory are high.
        let ridge = f16 / gpu.bytes_per_s;
        let highest = if gpu.mem_basis == MemoryBasis::Shared { 1000.0 } else { 460.0 };
        let lowest = if gpu.name.starts_with("h20") && !gpu.name.starts_with("h200") { 30.0 } else { 60.0 };
        assert!((lowest..highest).contains(&ridge), "{}: {ridge}", gpu.name);
        assert!(gpu.bytes_per_s >= 68e9 && gpu.mem_bytes >= 6_000_000_000, "{}", gpu.name);
        assert!(!gpu.source.is_empty());
    }
    // 1979 is the sparse figure and would halve MFU.
    assert_eq!(GpuPeaks::named("NVIDIA H200").unwrap().flops_of("bf16"), Some(989.4e12));
    assert_eq!(GpuPeaks::named("Tesla T4").unwrap().flops_of("bf16"), None);
}

#[test]
fn figures_are_those_of_the_datasheets() {
    for (name, dtype, tera, mhz) in [
        // f32 of Hopper belongs to a higher clock than the tensor cores' figures.
        ("h100", "f32", 66.9, Some(1980.0)),
        ("h100", "bf16", 989.4, Some(1830.0)),
        ("h100", "fp8", 1978.9, Some(1830.0)),
        ("h100_pcie", "f32", 51.2, Some(1755.0)),
        ("h100_pcie", "tf32", 378.0, Some(1620.0)),
        ("h100_nvl", "f32", 60.0, Some(1776.0)),
        ("h100_nvl", "bf16", 835.5, Some(1545.0)),
        ("gh200", "f32", 67.0, Some(1980.0)),
        ("l40s", "f32", 91.6, Some(2520.0)),
        ("l40s", "f16", 362.05, Some(2490.0)),
        ("l40", "f16", 181.05, Some(2490.0)),
        ("l4", "f16", 121.0, Some(2040.0)),
        ("a100_80gb", "bf16", 312.0, Some(1410.0)),
        ("a30", "f16", 165.0, Some(1440.0)),
        ("a40", "f16", 149.7, Some(1740.0)),
        ("a10", "f16", 125.0, Some(1695.0)),
        ("a10g", "f32", 35.0, Some(1710.0)),
        ("a10g", "bf16", 70.0, Some(1710.0)),
        ("a2", "f16", 18.0, Some(1770.0)),
        ("a16", "int8", 35.9, Some(1755.0)),
        ("t4", "int8", 130.0, Some(1590.0)),
        ("v100", "f16", 125.0, Some(1530.0)),
        ("rtx_a4000", "f32", 19.2, Some(1560.0)),
        ("rtx_6000_ada", "f16", 364.2, Some(2505.0)),
        ("rtx_4090", "fp8", 330.3, Some(2520.0)),
        ("rtx_5090", "bf16", 209.5, Some(2407.0)),
        ("rtx_3090", "bf16", 71.0, Some(1695.0)),
        ("b200", "bf16", 2250.0, None),
        ("h20", "bf16", 148.0, None),
    ] {
        let gpu = GpuPeaks::named(name).unwrap();
        let flops = gpu.flops_of(dtype).unwrap();
        assert!((flops / (tera * 1e12) - 1.0).abs() < 0.008, "{name} {dtype}: {flops:e}");
        assert_eq!(gpu.clock_of(dtype), mhz, "{name} {dtype}");
    }
    let h200 = GpuPeaks::named("h200").unwrap();
    assert_eq!((h200.mem_bytes, h200.mem_basis), (143_771 << 20, MemoryBasis::NvidiaSmi));
}

#[test]
fn unknown_peaks_can_be_configured() {
    let none = GivenPeaks::default();
    for (gpu, dtype, words) in [
        (None, "f32", "no GPU is profiled"),
        (Some("NVIDIA X"), "bf16", "the peaks of NVIDIA X are not known"),
        (Some("Tesla T4"), "bf16", "the bf16 peak of Tesla T4 is not known"),
    ] {
        let why = peaks(gpu, dtype, none).unwrap_err();
        for words in [words, "hardware.peaks.flops=", "llmprof-tui doctor --peaks measures them"] {
            assert!(why.contains(words), "{words}: {why}");
        }
    }
    let both = GivenPeaks { flops: Some(1e12), bytes_per_s: Some(5e10) };
    assert_eq!(peaks(None, "f32", both).unwrap().source, "given: hardware.peaks");
    let one = GivenPeaks { flops: Some(60e12), bytes_per_s: None };
    let t4 = peaks(Some("Tesla T4"), "bf16", one).unwrap();
    assert_eq!((t4.flops, t4.bytes_per_s, t4.clock_mhz), (60e12, 320e9, None));
    assert!(t4.source.contains("given"));
}

#[test]
fn a_gpu_outside_of_the_table_gets_an_estimate() {
    let laptop = GpuInfo {
        compute_capability: Some("8.9".to_owned()),
        cores: Some(9728),
        sm_clock_max_mhz: Some(2040),
        mem_bus_bits: Some(256),
        mem_clock_max_mhz: Some(9001),
        ..info("NVIDIA GeForce RTX 4090 Laptop GPU", 16_376)
    };
    let found = peaks_of(Some(&laptop), "bf16", GivenPeaks::default()).unwrap();
    // 76 SMs × 512 FLOP × 2,040 MHz, and 2 × 9,001 MHz × 256 bits.
    assert_eq!((found.flops, found.bytes_per_s), (79.38e12, 576.064e9));
    assert_eq!((found.basis, found.clock_mhz), (Basis::Estimated, Some(2040.0)));
    assert!(found.source.starts_with("estimated: 76 SMs at 2,040 MHz"), "{}", found.source);
    let unreported = GpuInfo { cores: None, ..laptop };
    let why = peaks_of(Some(&unreported), "bf16", GivenPeaks::default()).unwrap_err();
    assert!(why.contains("does not report its cores") && why.contains(OVERRIDE), "{why}");
}

#[test]
fn an_estimate_from_the_driver_agrees_with_the_datasheet() {
    // Cores, memory bus and memory clock as drivers report them, at the clock of the figures.
    for (name, capability, cores, sm_mhz, bits, mem_mhz) in [
        ("NVIDIA H100 80GB HBM3", "9.0", 16_896, 1830, 5120, 2619),
        ("NVIDIA A100-SXM4-80GB", "8.0", 6_912, 1410, 5120, 1593),
        ("NVIDIA GeForce RTX 4090", "8.9", 16_384, 2520, 384, 10_501),
        ("NVIDIA GeForce RTX 5090", "12.0", 21_760, 2407, 512, 14_001),
        ("Tesla T4", "7.5", 2_560, 1590, 256, 5_001),
        ("NVIDIA RTX A6000", "8.6", 10_752, 1800, 384, 8_001),
    ] {
        let gpu = GpuInfo {
            compute_capability: Some(capability.to_owned()),
            cores: Some(cores),
            sm_clock_max_mhz: Some(sm_mhz),
            mem_bus_bits: Some(bits),
            mem_clock_max_mhz: Some(mem_mhz),
            ..info(name, 1)
        };
        let (estimate, row) = (DevicePeaks::estimated(&gpu).unwrap(), GpuPeaks::named(name).unwrap());
        let f16 = estimate.rates[2].unwrap().flops / row.flops_of("f16").unwrap();
        let memory = estimate.bytes_per_s / row.bytes_per_s;
        assert!((f16 - 1.0).abs() < 0.002 && (memory - 1.0).abs() < 0.003, "{name}: {f16} {memory}");
    }
}
