//! The shapes of matrix products from logs of cuBLAS (`CUBLAS_LOGINFO_DBG=1`) and cublasLt (`CUBLASLT_LOG_LEVEL=2` or
//! more).

use std::{
    borrow::Cow,
    collections::HashMap,
    io::{self, BufRead, Read},
};

use super::{error::KernelsError, tally::MAX_ROWS};
use llmprof_event::kernels::{KernelRow, KernelTable, Kind, OTHERS, Product};

const REMEDY: &str = "set CUBLAS_LOGINFO_DBG=1 CUBLAS_LOGDEST_DBG=cublas.log, or CUBLASLT_LOG_LEVEL=2 CUBLASLT_LOG_FILE=cublaslt.log, before the \
                      program starts";
/// Longer lines are split.
const MAX_LINE: u64 = 64 << 10;

/// Calls by routine and shape.
#[derive(Default)]
struct Shapes {
    calls: HashMap<(String, Product), u64>,
    others: (u64, f64),
    unread: u64,
}

impl Shapes {
    fn add(&mut self, routine: &str, product: Option<Product>) {
        let Some(product) = product else {
            self.unread += 1;
            return;
        };
        let full = self.calls.len() >= MAX_ROWS;
        let key = (routine.to_owned(), product);
        if full && !self.calls.contains_key(&key) {
            self.others.0 += 1;
            self.others.1 += key.1.flops();
            return;
        }
        *self.calls.entry(key).or_default() += 1;
    }

    fn table(self, source: &str) -> KernelTable {
        let mut table = KernelTable::new(source, Kind::Products);
        for ((routine, product), calls) in self.calls {
            table.rows.push(KernelRow {
                name: format!("{routine} {}", product.text()),
                family: routine,
                calls,
                flops: Some(product.flops() * calls as f64),
                product: Some(product),
                ..KernelRow::default()
            });
        }
        if let (calls @ 1.., flops) = self.others {
            table.rows.push(KernelRow { calls, flops: Some(flops), ..KernelRow::named(OTHERS) });
        }
        if self.unread > 0 {
            table.notes.push(format!("{} calls have no shape", self.unread));
        }
        table.sort(Default::default());
        table
    }
}

/// A call of cuBLAS whose arguments are being read.
struct Call {
    routine: String,
    arguments: HashMap<&'static str, String>,
}

/// The arguments that are read.
const ARGUMENTS: [&str; 9] =
    ["m", "n", "k", "batchCount", "batch_count", "Atype", "Btype", "Ctype", "group_count"];

impl Call {
    /// The call that starts in a line, if it is a matrix product.
    fn started(line: &str) -> Option<Call> {
        let rest = line.split_once("function ")?.1;
        let signature = rest.split('(').next()?;
        let routine = signature.split_whitespace().last()?;
        let lower = routine.to_lowercase();
        let product = lower.contains("gemm") || lower.contains("gemv");
        // Settings and queries have similar names.
        let is_query = lower.contains("get") || lower.contains("set");
        (product && !is_query).then(|| Call { routine: routine.to_owned(), arguments: HashMap::new() })
    }

    fn argument(&mut self, line: &str) {
        let Some((name, rest)) = line.split_once(':') else { return };
        let Some(known) = ARGUMENTS.iter().find(|known| **known == name.trim()) else { return };
        if let Some((_, value)) = rest.split_once("val=") {
            self.arguments.insert(known, value.trim().to_owned());
        }
    }

    fn product(&self) -> Option<Product> {
        let number = |name: &str| self.arguments.get(name).and_then(|value| value.parse::<u64>().ok());
        let kind = |name: &str| self.arguments.get(name).and_then(|value| type_named(value));
        let by_letter = type_of_routine(&self.routine);
        let batch = number("batchCount").or_else(|| number("batch_count")).unwrap_or(1);
        let types = ["Atype", "Btype", "Ctype"].map(|name| kind(name).or(by_letter).map(Cow::Borrowed));
        let (m, n) = (number("m")?, number("n")?);
        // For a matrix-vector product, the argument n is K.
        let (n, k) = if self.routine.to_lowercase().contains("gemv") { (1, n) } else { (n, number("k")?) };
        Some(Product { m, n, k, batch, types })
    }
}

/// The type in the name of a routine such as `cublasSgemm_v2`.
fn type_of_routine(routine: &str) -> Option<&'static str> {
    let rest = routine.strip_prefix("cublas")?;
    let of = rest.find("gem").map(|at| &rest[..at])?;
    Some(match of {
        "S" => "f32",
        "D" => "f64",
        "H" => "f16",
        "C" => "complex f32",
        "Z" => "complex f64",
        _ => return None,
    })
}

/// The type of `CUDA_R_16BF(14)` or `R_16BF`.
fn type_named(text: &str) -> Option<&'static str> {
    let name = text.split('(').next()?.trim().trim_start_matches("CUDA_");
    Some(match name {
        "R_16BF" => "bf16",
        "R_16F" => "f16",
        "R_32F" => "f32",
        "R_64F" => "f64",
        "R_8I" => "i8",
        "R_8U" => "u8",
        "R_32I" => "i32",
        "R_8F_E4M3" => "f8_e4m3",
        "R_8F_E5M2" => "f8_e5m2",
        "R_4F_E2M1" => "f4_e2m1",
        "C_32F" => "complex f32",
        "C_64F" => "complex f64",
        "C_16F" => "complex f16",
        _ => return None,
    })
}

/// Reads either log, or both in one file. cuBLAS may call cublasLt, and then a GEMM is in both logs: read them
/// separately.
pub fn read_log(file: &str, mut input: impl BufRead) -> Result<KernelTable, KernelsError> {
    let (mut plain, mut light) = (Shapes::default(), Shapes::default());
    let mut call: Option<Call> = None;
    let mut line = Vec::new();
    let mut any = false;
    while next_line(&mut input, &mut line).map_err(KernelsError::read(file))? {
        any |= !line.trim_ascii().is_empty();
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if let Some(rest) = text.strip_prefix("I!") {
            if let Some(done) = call.take() {
                plain.add(&done.routine, done.product());
            }
            call = Call::started(rest);
        } else if let Some(rest) = text.strip_prefix("i!") {
            if let Some(call) = &mut call {
                call.argument(rest);
            }
        } else if let Some((routine, rest)) = light_call(text) {
            light.add(routine, light_product(rest));
        }
    }
    if let Some(done) = call {
        plain.add(&done.routine, done.product());
    }
    let file = file.to_owned();
    match (plain.calls.is_empty(), light.calls.is_empty()) {
        (false, true) => Ok(plain.table("cuBLAS log")),
        (true, false) => Ok(light.table("cublasLt log")),
        (false, false) => {
            let mut table = plain.table("cuBLAS and cublasLt log");
            table.rows.extend(light.table("").rows);
            table.notes.push("a GEMM that cuBLAS passed to cublasLt is counted twice".to_owned());
            table.sort(Default::default());
            Ok(table)
        }
        (true, true) if !any => Err(KernelsError::Empty { file, remedy: REMEDY }),
        (true, true) => {
            let what = "a log without a GEMM".to_owned();
            Err(KernelsError::NoRows { file, what, remedy: REMEDY })
        }
    }
}

/// The next line, or the next part of a line that is too long; false at the end.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    Ok(input.by_ref().take(MAX_LINE).read_until(b'\n', line)? > 0)
}

/// The routine and its arguments in `[…][cublasLt][1][Trace][cublasLtMatmul] A=…`.
fn light_call(line: &str) -> Option<(&str, &str)> {
    let rest = line.split_once("[cublasLt]")?.1;
    let rest = rest.split_once("[Trace][")?.1;
    let (routine, arguments) = rest.split_once(']')?;
    (routine.ends_with("Matmul") && arguments.contains("Adesc=[")).then_some((routine, arguments))
}

/// For D = A·B, the shape of D is M × N, and K is the size of A divided by M.
fn light_product(arguments: &str) -> Option<Product> {
    let described = |name: &str| {
        let (_, rest) = arguments.split_once(name)?;
        rest.split(']').next()
    };
    let value = |of: &'static str, name: &str| {
        let described = described(of)?;
        described.split_whitespace().find_map(|word| word.strip_prefix(name))
    };
    let number = |of, name| value(of, name).and_then(|text| text.parse::<u64>().ok());
    let (m, n) = (number("Ddesc=[", "rows=")?, number("Ddesc=[", "cols=")?);
    let elements = number("Adesc=[", "rows=")?.checked_mul(number("Adesc=[", "cols=")?)?;
    let k = (m > 0 && elements.is_multiple_of(m)).then(|| elements / m)?;
    let batch = number("Ddesc=[", "batchCount=").or_else(|| number("Adesc=[", "batchCount=")).unwrap_or(1);
    let types = ["Adesc=[", "Bdesc=[", "Ddesc=["]
        .map(|of| value(of, "type=").and_then(type_named).map(Cow::Borrowed));
    Some(Product { m, n, k, batch, types })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GEMM_EX: &str = "\
I! cuBLAS (v13.4.1) function cublasStatus_t cublasCreate_v2(cublasContext**) called:
i!  handle: type=cublasHandle_t; val=POINTER (IN HEX:0x0x1f9448f0)
i! Time: 2026-09-11T18:11:38 elapsed from start 0.016667 minutes or 1.000000 seconds
I! cuBLAS (v13.4.1) function cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, int, int, int) called:
i!  handle: type=cublasHandle_t; val=POINTER (IN HEX:0x0x1f9560f0)
i!  transa: type=cublasOperation_t; val=CUBLAS_OP_T(1)
i!  m: type=int; val=4864
i!  n: type=int; val=128
i!  k: type=int; val=896
i!  Atype: type=cudaDataType_t; val=CUDA_R_16BF(14)
i!  Btype: type=cudaDataType_t; val=CUDA_R_16BF(14)
i!  Ctype: type=cudaDataType_t; val=CUDA_R_16BF(14)
i!  computeType: type=cublasComputeType_t; val=CUBLAS_COMPUTE_32F(68)
i!Process=10673; Thread=123934205857792; GPU=0; Handle=POINTER (IN HEX:0x(nil))
i! COMPILED WITH: GNU GCC/G++ / 8.5.0 20210514 (Red Hat 8.5.0-26)
";

    #[test]
    fn shapes_of_cublas() {
        let twice = format!(
            "{GEMM_EX}{GEMM_EX}I! cuBLAS (v13.4.1) function cublasStatus_t cublasSgemmStridedBatched(int) called:\n\
            i!  m: type=int; val=2\ni!  n: type=int; val=3\ni!  k: type=int; val=5\ni!  batchCount: type=int; val=14\n\
            I! cuBLAS (v13.4.1) function cublasStatus_t cublasSgemv_v2(int) called:\ni!  m: type=int; val=7\ni!  n: type=int; val=11\n"
        );
        let table = read_log("cublas.log", twice.as_bytes()).unwrap();
        assert_eq!((table.kind, table.rows.len()), (Kind::Products, 3));
        let first = &table.rows[0];
        assert_eq!((first.name.as_str(), first.calls), ("cublasGemmEx 4864×128×896 bf16", 2));
        assert_eq!(first.flops, Some(2.0 * 2.0 * 4864.0 * 128.0 * 896.0));
        assert_eq!(table.rows[1].flops, Some(2.0 * 2.0 * 3.0 * 5.0 * 14.0));
        assert_eq!(table.rows[1].name, "cublasSgemmStridedBatched 2×3×5 ×14 f32");
        assert_eq!(table.rows[2].flops, Some(2.0 * 7.0 * 11.0));
    }

    #[test]
    fn shapes_of_cublaslt() {
        let log = "\
[2026-05-04 15:08:47][cublasLt][5][Api][cublasLtMatmulAlgoGetHeuristic] Adesc=[type=R_16F rows=9 cols=9 ld=9]
[2023-04-07 04:57:13][cublasLt][8291][Trace][cublasLtMatmul] A=0X7F8EB6002300 Adesc=[type=R_16F rows=32 cols=16 ld=32] B=0X7F8EB6001B00 Bdesc=[type=R_16F rows=16 cols=64 ld=16] C=0X7F8EB6003200 Cdesc=[type=R_16F rows=32 cols=64 ld=32] D=0X7F8EB6003200 Ddesc=[type=R_16F rows=32 cols=64 ld=32] computeDesc=[computeType=COMPUTE_32F scaleType=R_32F] algo=[algoId=21] stream=0X7EB04D0
[2026-05-04 15:08:47][cublasLt][53055][Trace][cublasLtMatmul] A=0X330220000 Adesc=[type=R_8F_E4M3 rows=1024 cols=2048 ld=1024] B=0X32EE50000 Bdesc=[type=R_8F_E4M3 rows=1024 cols=32 ld=1024] C=0X330220000 Cdesc=[type=R_16BF rows=2048 cols=32 ld=2048] D=0X32EE58000 Ddesc=[type=R_16BF rows=2048 cols=32 ld=2048] computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transa=OP_T]
";
        let table = read_log("lt.log", log.as_bytes()).unwrap();
        let product = |at: usize| table.rows[at].product.clone().unwrap();
        assert_eq!((product(0).m, product(0).n, product(0).k), (2048, 32, 1024));
        assert_eq!(table.rows[0].name, "cublasLtMatmul 2048×32×1024 f8_e4m3 to bf16");
        assert_eq!((product(1).m, product(1).n, product(1).k), (32, 64, 16));
        assert_eq!(table.calls(), 2);
    }

    #[test]
    fn a_log_without_products_is_an_error() {
        assert!(read_log("x.log", &b""[..]).unwrap_err().to_string().contains("x.log is empty"));
        let e =
            read_log("x.log", &b"I! cuBLAS (v13) function cublasStatus_t cublasCreate_v2() called:\n"[..]);
        let e = e.unwrap_err().to_string();
        assert!(e.contains("without a GEMM") && e.contains("CUBLAS_LOGINFO_DBG=1"), "{e}");
        let cut =
            "I! cuBLAS (v13) function cublasStatus_t cublasSgemm_v2(int) called:\ni!  m: type=int; val=2\n";
        assert!(read_log("x.log", cut.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_log("any", bytes.as_slice());
        }

        #[test]
        fn any_lines_of_a_log_are_read_or_rejected(lines in "([Ii]! |cublasLt|\\[Trace\\]\\[|function |gemm|[mnk]: val=|Adesc=\\[rows=|[0-9]{1,24}|\\(|\n| ){0,40}") {
            let _ = read_log("any", lines.as_bytes());
        }
    }
}
