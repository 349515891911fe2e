//! The GPUs whose peaks are built in, each with the source of its figures.

use llmprof_base::{
    table::{Column, Table},
    units::{bytes, grouped, scaled},
};

use super::{
    Basis, Measured, MemoryBasis,
    units::{self, Units},
};

/// A GPU and its figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuPeaks {
    /// Its short name.
    pub name: &'static str,
    /// The words of its name in the driver; `?` marks optional words.
    pub(super) words: &'static str,
    pub(super) figures: Figures,
    pub bytes_per_s: f64,
    pub mem_bytes: u64,
    pub mem_basis: MemoryBasis,
    pub basis: Basis,
    pub source: &'static str,
    /// The achievable rates, if they were measured.
    pub measured: Option<Measured>,
}

/// The form in which the FLOP/s of a row are given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Figures {
    /// SMs, and the clocks of the vendor's figures outside and inside of the tensor cores.
    Clocks { units: &'static Units, sms: u32, core_mhz: f64, tensor_mhz: f64 },
    /// TFLOP/s of f32, tf32, f16, bf16, fp8 and int8, at a clock that the vendor does not state; 0 for none.
    Tera([f64; 6]),
}

/// Memory in MiB as nvidia-smi shows it.
const fn mib(mib: u64) -> (u64, MemoryBasis) {
    (mib << 20, MemoryBasis::NvidiaSmi)
}

/// The capacity as the vendor states it, of which the driver reserves a part.
const fn gib(gib: u64) -> (u64, MemoryBasis) {
    (gib << 30, MemoryBasis::Nominal)
}

/// Decimal gigabytes that a GPU shares with the CPU.
const fn shared_gb(gb: u64) -> (u64, MemoryBasis) {
    (gb * 1_000_000_000, MemoryBasis::Shared)
}

type StatedPeaks = (&'static str, &'static str, Figures, f64, (u64, MemoryBasis), &'static str);

const fn stated((name, words, figures, gb_s, (mem_bytes, mem_basis), source): StatedPeaks) -> GpuPeaks {
    let bytes_per_s = gb_s * 1e9;
    let (basis, measured) = (Basis::Stated, None);
    GpuPeaks { name, words, figures, bytes_per_s, mem_bytes, mem_basis, basis, source, measured }
}

const fn estimated(row: StatedPeaks) -> GpuPeaks {
    GpuPeaks { basis: Basis::Estimated, ..stated(row) }
}

const fn clocks(units: &'static Units, sms: u32, core_mhz: f64, tensor_mhz: f64) -> Figures {
    Figures::Clocks { units, sms, core_mhz, tensor_mhz }
}

const fn boost(units: &'static Units, sms: u32, mhz: f64) -> Figures {
    clocks(units, sms, mhz, mhz)
}

const H200_MEASURED: Measured = Measured {
    bf16_flops: 790e12,
    bytes_per_s: 4.50e12,
    how: "one H200, driver 580.159.04, CUDA 13.0: a large bf16 GEMM and a 14 GB read",
};

const HOPPER: &str = "NVIDIA H100 architecture white paper";
const H200: &str = "NVIDIA H200 datasheet, sparse figures halved";
const H100: &str = "NVIDIA H100 datasheet, sparse figures halved";
const GH200: &str = "NVIDIA GH200 datasheet, sparse figures halved";
const A100: &str = "NVIDIA A100 datasheet";
const V100: &str = "NVIDIA V100 datasheet";
const GA102: &str = "NVIDIA Ampere GA102 white paper, f32 accumulation";
const GA104: &str = "NVIDIA GeForce RTX 30 specifications, f32 accumulation";
const ADA: &str = "NVIDIA Ada GPU architecture white paper, f32 accumulation";
const RTX_40: &str = "NVIDIA GeForce RTX 40 specifications, f32 accumulation";
const RTX_50: &str = "NVIDIA RTX Blackwell architecture white paper, f32 accumulation";
const RTX_50_SPECS: &str = "NVIDIA GeForce RTX 50 specifications, f32 accumulation";
const RTX_A: &str = "NVIDIA RTX A series datasheets, sparse figures halved";
const RTX_ADA: &str = "NVIDIA RTX Ada Generation datasheets, sparse figures halved";
const RTX_PRO: &str = "NVIDIA RTX Blackwell PRO architecture white paper";
const PRO_TOPS: &str = "SM count, and the clock from the AI TOPS of the NVIDIA RTX PRO Blackwell datasheet";
const ORIN: &str = "NVIDIA Jetson Orin datasheet: sparse int8 figure of the GPU halved, other types by its SM count and clock";

/// GPUs by name. FLOP/s are dense, those of GeForce GPUs with f32 sums.
#[rustfmt::skip]
pub const GPUS: &[GpuPeaks] = &[
    // Blackwell, data centre.
    stated(("b300", "b300", Figures::Tera([75.0, 1125.0, 2250.0, 2250.0, 4500.0, 0.0]), 7700.0, mib(275_040),
        "NVIDIA HGX B300 datasheet, sparse figures halved")),
    stated(("gb300", "gb300", Figures::Tera([80.0, 1250.0, 2500.0, 2500.0, 5000.0, 0.0]), 8000.0, mib(284_208),
        "NVIDIA GB300 NVL72 datasheet, sparse figures halved")),
    stated(("b200", "b200", Figures::Tera([75.0, 1125.0, 2250.0, 2250.0, 4500.0, 4500.0]), 7700.0, mib(183_359),
        "NVIDIA HGX B200 datasheet, sparse figures halved")),
    stated(("gb200", "gb200", Figures::Tera([80.0, 1250.0, 2500.0, 2500.0, 5000.0, 5000.0]), 8000.0, mib(189_471),
        "NVIDIA GB200 NVL72 datasheet, sparse figures halved")),
    // Hopper. Its f32 figures belong to a higher clock than those of the tensor cores.
    stated(("gh200", "gh200 ?480gb ?120gb", clocks(&units::HOPPER, 132, 1980.0, 1830.0), 4000.0, mib(97_871), GH200)),
    stated(("gh200_144gb", "gh200 144g|144gb", clocks(&units::HOPPER, 132, 1980.0, 1830.0), 4900.0, gib(144), GH200)),
    stated(("h200_nvl", "h200 nvl", clocks(&units::HOPPER, 132, 1776.0, 1545.0), 4800.0, mib(143_771), H200)),
    GpuPeaks {
        measured: Some(H200_MEASURED),
        ..stated(("h200", "h200", clocks(&units::HOPPER, 132, 1980.0, 1830.0), 4800.0, mib(143_771), H200))
    },
    stated(("h100_nvl", "h100 nvl", clocks(&units::HOPPER, 132, 1776.0, 1545.0), 3900.0, mib(95_830), H100)),
    stated(("h100_pcie", "h100 pcie", clocks(&units::HOPPER, 114, 1755.0, 1620.0), 2039.0, mib(81_559), HOPPER)),
    stated(("h100", "h100", clocks(&units::HOPPER, 132, 1980.0, 1830.0), 3350.0, mib(81_559), HOPPER)),
    estimated(("h800_pcie", "h800 pcie", clocks(&units::HOPPER, 114, 1755.0, 1620.0), 2039.0, mib(81_559),
        "the H100 PCIe, from which the H800 differs in NVLink and f64")),
    estimated(("h800", "h800", clocks(&units::HOPPER, 132, 1980.0, 1830.0), 3350.0, mib(81_559),
        "the H100 SXM, from which the H800 differs in NVLink and f64")),
    stated(("h20", "h20", Figures::Tera([44.0, 74.0, 148.0, 148.0, 296.0, 296.0]), 4000.0, mib(97_871),
        "NVIDIA H20 specifications")),
    stated(("h20_141gb", "h20 3e|141gb", Figures::Tera([44.0, 74.0, 148.0, 148.0, 296.0, 296.0]), 4800.0, mib(143_771),
        "NVIDIA H20 specifications, with the memory of the H200")),
    // Ampere, data centre.
    stated(("a100_80gb_pcie", "a100 80gb pcie", boost(&units::GA100, 108, 1410.0), 1935.0, mib(81_920), A100)),
    stated(("a100_80gb", "a100 80gb", boost(&units::GA100, 108, 1410.0), 2039.0, mib(81_920), A100)),
    stated(("a100_40gb", "a100 40gb ?pcie", boost(&units::GA100, 108, 1410.0), 1555.0, mib(40_960), A100)),
    estimated(("a800_80gb_pcie", "a800 80gb pcie", boost(&units::GA100, 108, 1410.0), 1935.0, mib(81_920),
        "the A100 80GB PCIe, from which the A800 differs in NVLink")),
    estimated(("a800_80gb", "a800 80gb", boost(&units::GA100, 108, 1410.0), 2039.0, mib(81_920),
        "the A100 80GB SXM, from which the A800 differs in NVLink")),
    estimated(("a800_40gb", "a800 40gb ?pcie ?active", boost(&units::GA100, 108, 1410.0), 1555.0, mib(40_960),
        "the A100 40GB, from which the A800 differs in NVLink")),
    stated(("a30", "a30", boost(&units::GA100, 56, 1440.0), 933.0, mib(24_576), "NVIDIA A30 datasheet")),
    stated(("a40", "a40", boost(&units::GA10X, 84, 1740.0), 696.0, mib(46_068), "NVIDIA A40 datasheet")),
    stated(("a16", "a16", boost(&units::GA10X, 10, 1755.0), 200.0, mib(15_356), "NVIDIA A16 datasheet, one of its four GPUs")),
    stated(("a10", "a10", boost(&units::GA10X, 72, 1695.0), 600.0, mib(23_028), "NVIDIA A10 datasheet")),
    stated(("a10g", "a10g", boost(&units::GA10X_A10G, 80, 1710.0), 600.0, mib(23_028), "NVIDIA A10G datasheet")),
    stated(("a2", "a2", boost(&units::GA10X, 10, 1770.0), 200.0, mib(15_356), "NVIDIA A2 datasheet")),
    // Ada, data centre.
    stated(("l40s", "l40s", clocks(&units::ADA, 142, 2520.0, 2490.0), 864.0, mib(46_068), "NVIDIA L40S datasheet")),
    stated(("l40", "l40", boost(&units::ADA_HALF, 142, 2490.0), 864.0, mib(46_068), "NVIDIA L40 datasheet")),
    stated(("l20", "l20", boost(&units::ADA_HALF, 92, 2520.0), 864.0, gib(48), "NVIDIA L20 specifications")),
    stated(("l4", "l4", boost(&units::ADA, 58, 2040.0), 300.0, mib(23_034), "NVIDIA L4 datasheet, sparse figures halved")),
    // Workstations.
    stated(("rtx_pro_6000", "rtx pro 6000 blackwell", boost(&units::BLACKWELL_PRO, 188, 2617.0), 1792.0, mib(97_887), RTX_PRO)),
    estimated(("rtx_pro_6000_max_q", "rtx pro 6000 blackwell max q", boost(&units::BLACKWELL_PRO, 188, 2288.0), 1792.0,
        mib(97_887), "SM count, and the clock from the 110 TFLOP/s (f32) of the NVIDIA datasheet")),
    estimated(("rtx_pro_6000_server", "rtx pro 6000 blackwell server", boost(&units::BLACKWELL_PRO, 188, 2493.0), 1597.0,
        mib(97_887), "SM count, and the clock from the 120 TFLOP/s (f32) of the NVIDIA datasheet")),
    estimated(("rtx_pro_5000", "rtx pro 5000 blackwell", boost(&units::BLACKWELL_PRO, 110, 2290.0), 1344.0, gib(48), PRO_TOPS)),
    estimated(("rtx_pro_5000_72gb", "rtx pro 5000 blackwell", boost(&units::BLACKWELL_PRO, 110, 2290.0), 1344.0, gib(72),
        "the RTX PRO 5000 with 48 GB")),
    estimated(("rtx_pro_4500", "rtx pro 4500 blackwell", boost(&units::BLACKWELL_PRO, 82, 2510.0), 896.0, gib(32), PRO_TOPS)),
    estimated(("rtx_pro_4000", "rtx pro 4000 blackwell", boost(&units::BLACKWELL_PRO, 70, 2055.0), 672.0, gib(24), PRO_TOPS)),
    estimated(("rtx_pro_4000_sff", "rtx pro 4000 blackwell sff", boost(&units::BLACKWELL_PRO, 70, 1337.0), 432.0, gib(24),
        PRO_TOPS)),
    stated(("rtx_6000_ada", "rtx 6000 ada", boost(&units::ADA, 142, 2505.0), 960.0, mib(49_140),
        "NVIDIA Ada GPU architecture white paper")),
    stated(("rtx_5880_ada", "rtx 5880 ada", boost(&units::ADA, 110, 2460.0), 960.0, mib(49_140), RTX_ADA)),
    stated(("rtx_5000_ada", "rtx 5000 ada", boost(&units::ADA, 100, 2550.0), 576.0, mib(32_760), RTX_ADA)),
    stated(("rtx_4500_ada", "rtx 4500 ada", boost(&units::ADA, 60, 2580.0), 432.0, gib(24), RTX_ADA)),
    stated(("rtx_4000_ada", "rtx 4000 ada", boost(&units::ADA, 48, 2175.0), 360.0, mib(20_475), RTX_ADA)),
    stated(("rtx_4000_sff_ada", "rtx 4000 sff ada", boost(&units::ADA, 48, 1560.0), 280.0, mib(20_475), RTX_ADA)),
    stated(("rtx_2000_ada", "rtx 2000 ada", boost(&units::ADA, 22, 2130.0), 224.0, gib(16), RTX_ADA)),
    stated(("rtx_a6000", "rtx a6000", boost(&units::GA10X, 84, 1800.0), 768.0, mib(49_140),
        "NVIDIA Ampere GA102 white paper")),
    stated(("rtx_a5500", "rtx a5500", boost(&units::GA10X, 80, 1665.0), 768.0, mib(24_564), RTX_A)),
    stated(("rtx_a5000", "rtx a5000", boost(&units::GA10X, 64, 1695.0), 768.0, mib(24_564), RTX_A)),
    stated(("rtx_a4500", "rtx a4500", boost(&units::GA10X, 56, 1650.0), 640.0, mib(20_470), RTX_A)),
    stated(("rtx_a4000", "rtx a4000", boost(&units::GA10X, 48, 1560.0), 448.0, mib(16_376), RTX_A)),
    stated(("rtx_a2000", "rtx a2000", boost(&units::GA10X, 26, 1200.0), 288.0, mib(6_138), RTX_A)),
    stated(("rtx_a2000_12gb", "rtx a2000", boost(&units::GA10X, 26, 1200.0), 288.0, mib(12_282), RTX_A)),
    // GeForce.
    stated(("rtx_5090", "rtx 5090", boost(&units::BLACKWELL_GEFORCE, 170, 2407.0), 1792.0, mib(32_607), RTX_50)),
    stated(("rtx_5080", "rtx 5080", boost(&units::BLACKWELL_GEFORCE, 84, 2617.0), 960.0, mib(16_303), RTX_50)),
    stated(("rtx_5070_ti", "rtx 5070 ti", boost(&units::BLACKWELL_GEFORCE, 70, 2452.0), 896.0, mib(16_303), RTX_50)),
    stated(("rtx_5070", "rtx 5070", boost(&units::BLACKWELL_GEFORCE, 48, 2512.0), 672.0, mib(12_227), RTX_50)),
    stated(("rtx_5060_ti", "rtx 5060 ti", boost(&units::BLACKWELL_GEFORCE, 36, 2572.0), 448.0, mib(16_311), RTX_50_SPECS)),
    stated(("rtx_5060_ti_8gb", "rtx 5060 ti", boost(&units::BLACKWELL_GEFORCE, 36, 2572.0), 448.0, mib(8_151), RTX_50_SPECS)),
    stated(("rtx_5060", "rtx 5060", boost(&units::BLACKWELL_GEFORCE, 30, 2497.0), 448.0, mib(8_151), RTX_50_SPECS)),
    stated(("rtx_4090", "rtx 4090", boost(&units::ADA_GEFORCE, 128, 2520.0), 1008.0, mib(24_564), ADA)),
    stated(("rtx_4090_d", "rtx 4090 d", boost(&units::ADA_GEFORCE, 114, 2520.0), 1008.0, mib(24_564), RTX_40)),
    stated(("rtx_4080_super", "rtx 4080 super", boost(&units::ADA_GEFORCE, 80, 2550.0), 736.0, mib(16_376), RTX_40)),
    stated(("rtx_4080", "rtx 4080", boost(&units::ADA_GEFORCE, 76, 2505.0), 717.0, mib(16_376), ADA)),
    stated(("rtx_4070_ti_super", "rtx 4070 ti super", boost(&units::ADA_GEFORCE, 66, 2610.0), 672.0, mib(16_376), RTX_40)),
    stated(("rtx_4070_ti", "rtx 4070 ti", boost(&units::ADA_GEFORCE, 60, 2610.0), 504.0, mib(12_282), RTX_40)),
    stated(("rtx_4070_super", "rtx 4070 super", boost(&units::ADA_GEFORCE, 56, 2475.0), 504.0, mib(12_282), RTX_40)),
    stated(("rtx_4070", "rtx 4070", boost(&units::ADA_GEFORCE, 46, 2475.0), 504.0, mib(12_282), RTX_40)),
    stated(("rtx_4060_ti", "rtx 4060 ti", boost(&units::ADA_GEFORCE, 34, 2535.0), 288.0, mib(8_188), RTX_40)),
    stated(("rtx_4060_ti_16gb", "rtx 4060 ti", boost(&units::ADA_GEFORCE, 34, 2535.0), 288.0, mib(16_380), RTX_40)),
    stated(("rtx_4060", "rtx 4060", boost(&units::ADA_GEFORCE, 24, 2460.0), 272.0, mib(8_188), RTX_40)),
    stated(("rtx_3090_ti", "rtx 3090 ti", boost(&units::GA10X_GEFORCE, 84, 1860.0), 1008.0, mib(24_564), GA102)),
    stated(("rtx_3090", "rtx 3090", boost(&units::GA10X_GEFORCE, 82, 1695.0), 936.0, mib(24_576), GA102)),
    stated(("rtx_3080_ti", "rtx 3080 ti", boost(&units::GA10X_GEFORCE, 80, 1665.0), 912.0, mib(12_288), GA102)),
    stated(("rtx_3080", "rtx 3080", boost(&units::GA10X_GEFORCE, 68, 1710.0), 760.0, mib(10_240), GA102)),
    stated(("rtx_3080_12gb", "rtx 3080", boost(&units::GA10X_GEFORCE, 70, 1710.0), 912.0, mib(12_288), GA104)),
    stated(("rtx_3070_ti", "rtx 3070 ti", boost(&units::GA10X_GEFORCE, 48, 1770.0), 608.0, mib(8_192), GA104)),
    stated(("rtx_3070", "rtx 3070", boost(&units::GA10X_GEFORCE, 46, 1725.0), 448.0, mib(8_192), GA102)),
    stated(("rtx_3060_ti", "rtx 3060 ti", boost(&units::GA10X_GEFORCE, 38, 1665.0), 448.0, mib(8_192), GA104)),
    stated(("rtx_3060", "rtx 3060", boost(&units::GA10X_GEFORCE, 28, 1777.0), 360.0, mib(12_288), GA104)),
    stated(("rtx_3060_8gb", "rtx 3060", boost(&units::GA10X_GEFORCE, 28, 1777.0), 240.0, mib(8_192), GA104)),
    // Volta and Turing.
    stated(("v100", "v100 ?sxm2 ?16gb", boost(&units::VOLTA, 80, 1530.0), 900.0, mib(16_384), V100)),
    stated(("v100_32gb", "v100 ?sxm2", boost(&units::VOLTA, 80, 1530.0), 900.0, mib(32_768), V100)),
    stated(("v100_pcie", "v100 pcie", boost(&units::VOLTA, 80, 1380.0), 900.0, mib(16_384), V100)),
    stated(("v100_pcie_32gb", "v100 pcie", boost(&units::VOLTA, 80, 1380.0), 900.0, mib(32_768), V100)),
    stated(("v100s", "v100s ?pcie", boost(&units::VOLTA, 80, 1597.0), 1134.0, mib(32_768), "NVIDIA V100S datasheet")),
    stated(("t4", "t4", boost(&units::TURING, 40, 1590.0), 320.0, mib(15_360), "NVIDIA T4 datasheet")),
    // Memory shared with the CPU.
    estimated(("gb10", "gb10", boost(&units::BLACKWELL_PRO, 48, 2525.0), 273.0, shared_gb(128),
        "6,144 cores and 31 TFLOP/s (f32) of the NVIDIA GB10, rates of the RTX PRO Blackwell")),
    estimated(("jetson_thor", "thor", boost(&units::BLACKWELL, 20, 1575.0), 273.0, shared_gb(128),
        "NVIDIA Jetson Thor datasheet: sparse fp4 figure of the T5000 by its SM count and clock")),
    estimated(("jetson_agx_orin_64gb", "agx orin 64gb", boost(&units::ORIN, 16, 1300.0), 204.8, shared_gb(64), ORIN)),
    estimated(("jetson_agx_orin_32gb", "agx orin 32gb", boost(&units::ORIN, 14, 930.0), 204.8, shared_gb(32), ORIN)),
    estimated(("jetson_orin_nx_16gb", "orin nx 16gb", boost(&units::ORIN, 8, 918.0), 102.4, shared_gb(16), ORIN)),
    estimated(("jetson_orin_nano_8gb", "orin nano 8gb", boost(&units::ORIN, 8, 625.0), 68.0, shared_gb(8), ORIN)),
];

/// The table as Markdown.
pub fn markdown() -> String {
    let numbers = ["f32", "bf16, else f16", "memory bandwidth", "memory"];
    let mut table = Table::labelled("`--gpu`", numbers);
    table.columns.push(Column::text("source"));
    for gpu in GPUS {
        let rate = |dtype: &str| {
            let at = gpu
                .clock_of(dtype)
                .map_or_else(String::new, |mhz| format!(" at {} MHz", grouped(mhz as i64)));
            Some(format!("{}{at}", scaled(gpu.flops_of(dtype)?, "FLOP/s")))
        };
        let mark = match gpu.mem_basis {
            MemoryBasis::Driver | MemoryBasis::NvidiaSmi => "",
            MemoryBasis::Nominal => ", nominal",
            MemoryBasis::Shared => ", shared",
        };
        let estimate = if gpu.basis == Basis::Estimated { "estimate: " } else { "" };
        table.push([
            format!("`{}`", gpu.name),
            rate("f32").unwrap_or_default(),
            rate("bf16").or_else(|| rate("f16")).unwrap_or_default(),
            scaled(gpu.bytes_per_s, "B/s"),
            format!("{}{mark}", bytes(gpu.mem_bytes)),
            format!("{estimate}{}", gpu.source),
        ]);
    }
    table.markdown()
}
