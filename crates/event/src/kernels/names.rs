//! Full and short names of kernels.
//!
//! A profiler reports the full signature of a kernel. The function's own name is what `ncu -k` matches. The family is a
//! short name without tile sizes, template arguments and parameters.

use std::borrow::Cow;

use super::direction::Direction;

/// The signature of a mangled name; any other name unchanged.
pub fn demangled(name: &str) -> Cow<'_, str> {
    let mangled = name.strip_prefix("_Z").is_some();
    // A longer name may be an attack on the demangler, and its demangled form is useless.
    if !mangled || name.len() > 4096 {
        return Cow::Borrowed(name);
    }
    let symbol = cpp_demangle::Symbol::new(name).ok();
    symbol.and_then(|symbol| symbol.demangle().ok()).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// A parsed signature.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Signature<'n> {
    /// The function with its namespaces, without templates.
    path: String,
    /// The template arguments of the function itself.
    arguments: &'n str,
}

/// The function's own name, without namespaces: `gemv_kernel` of `void ns::gemv_kernel<4>(int)`.
pub fn function(name: &str) -> String {
    let full = demangled(name);
    let signature = parse_signature(&full);
    signature.path.rsplit("::").next().unwrap_or_default().to_owned()
}

/// The family of a kernel; empty only for an empty name.
pub fn family(name: &str) -> String {
    // Copies are not functions.
    if Direction::is_name(name) {
        return name.to_owned();
    }
    family_within(name, MAX_DEPTH)
}

/// Maximum depth of nested wrappers.
const MAX_DEPTH: usize = 4;

fn family_within(name: &str, levels: usize) -> String {
    let full = demangled(name);
    let Signature { path, arguments } = parse_signature(&full);
    let function = path.rsplit("::").next().unwrap_or_default();
    if is_wrapper(function) {
        let wrapped = levels.checked_sub(1).and_then(|levels| operation_argument(arguments, levels));
        if let Some(wrapped) = wrapped {
            return wrapped_family(function, &wrapped);
        }
        // `gemvx::kernel` is more specific than `kernel`.
        let mut parts = path.rsplit("::");
        let last = parts.next().unwrap_or_default();
        let above = parts.next().filter(|above| *above != ANONYMOUS);
        return above.map_or_else(|| last.to_owned(), |above| format!("{above}::{last}"));
    }
    if path.starts_with("cublasLt::") {
        return path;
    }
    let folded = without_tiles(function);
    if folded.is_empty() { name.trim().to_owned() } else { folded.to_owned() }
}

/// A regular expression for `ncu -k regex:…`, which matches the function's own name.
pub fn ncu_regex(name: &str) -> String {
    let mut pattern = String::from("^");
    for c in function(name).chars() {
        if !c.is_alphanumeric() && c != '_' {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern + "$"
}

const ANONYMOUS: &str = "(anonymous namespace)";

/// Reads the text up to the parameters and skips what is in angle brackets.
fn parse_signature(full: &str) -> Signature<'_> {
    let full = full.trim();
    // Names that a tool invents for operations without a function.
    if full.starts_with('[') || (full.starts_with('(') && !full.starts_with(ANONYMOUS)) {
        return Signature { path: full.to_owned(), arguments: "" };
    }
    let bytes = full.as_bytes();
    let mut path = String::new();
    let (mut depth, mut opened, mut kept_from) = (0usize, 0, 0);
    let mut arguments = "";
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'<' => {
                if depth == 0 {
                    path.push_str(&full[kept_from..at]);
                    opened = at + 1;
                }
                depth += 1;
            }
            b'>' if depth > 0 && !(at > 0 && bytes[at - 1] == b'-') => {
                depth -= 1;
                if depth == 0 {
                    arguments = &full[opened..at];
                    kept_from = at + 1;
                }
            }
            b'(' if depth == 0 && full[at..].starts_with(ANONYMOUS) => at += ANONYMOUS.len() - 1,
            b'(' if depth == 0 && at > 0 => {
                path.push_str(&full[kept_from..at]);
                kept_from = full.len();
                break;
            }
            // Parentheses in template arguments may contain comparisons.
            b'(' if depth > 0 => at = closing(bytes, at),
            _ => {}
        }
        at += 1;
    }
    if depth == 0 {
        path.push_str(&full[kept_from..]);
    }
    // The return type ends at the last space; an anonymous namespace contains a space too.
    let path = path.trim().replace(ANONYMOUS, "(anonymous)");
    let function = path.rsplit(' ').next().unwrap_or_default().trim_start_matches(['*', '&']);
    let path = function.replace("(anonymous)", ANONYMOUS);
    // Unbalanced brackets: nothing can be removed.
    if path.is_empty() {
        return Signature { path: full.to_owned(), arguments: "" };
    }
    Signature { path, arguments }
}

/// The index of the parenthesis that closes the one at `open`, or the end.
fn closing(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return at,
            b')' => depth -= 1,
            _ => {}
        }
    }
    bytes.len() - 1
}

/// Functions that run the operation in their template argument.
fn is_wrapper(function: &str) -> bool {
    const WRAPPERS: [&str; 12] = [
        "Kernel",
        "Kernel2",
        "kernel",
        "device_kernel",
        "cutlass_kernel",
        "elementwise_kernel",
        "vectorized_elementwise_kernel",
        "unrolled_elementwise_kernel",
        "elementwise_kernel_with_index",
        "reduce_kernel",
        "index_elementwise_kernel",
        "static_kernel",
    ];
    WRAPPERS.contains(&function)
}

fn wrapped_family(function: &str, wrapped: &str) -> String {
    // These wrappers do nothing themselves.
    if ["Kernel", "Kernel2", "kernel", "device_kernel", "cutlass_kernel"].contains(&function) {
        return wrapped.to_owned();
    }
    format!("{function}<{wrapped}>")
}

/// The template argument that names the operation: a functor or an operation, else the first type.
fn operation_argument(arguments: &str, levels: usize) -> Option<String> {
    let names: Vec<&str> = arguments
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|name| name.starts_with(|c: char| c.is_alphabetic() || c == '_'))
        .collect();
    let is_operation = |name: &&&str| {
        name.contains("Functor") || name.ends_with("_cuda") || name.ends_with("Op") || name.ends_with("Ops")
    };
    if let Some(name) = names.iter().find(is_operation) {
        return Some(without_tiles(name).to_owned());
    }
    const PLAIN: [&str; 16] = [
        "int", "float", "double", "bool", "char", "short", "long", "unsigned", "signed", "void", "const",
        "std", "at", "native", "true", "false",
    ];
    let first = split_arguments(arguments).into_iter().find(|argument| {
        let argument = argument.trim();
        argument.starts_with(|c: char| c.is_alphabetic()) && !PLAIN.contains(&argument)
    })?;
    let name = family_within(first, levels);
    (!PLAIN.contains(&name.as_str()) && !is_wrapper(&name)).then_some(name)
}

/// Template arguments at the first level.
fn split_arguments(arguments: &str) -> Vec<&str> {
    let (mut depth, mut from) = (0usize, 0);
    let mut found = Vec::new();
    for (at, byte) in arguments.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'{' => depth += 1,
            b'>' | b')' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                found.push(&arguments[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(&arguments[from..]);
    found
}

/// The part of a name before its tile sizes: `nvjet_sm90_tst` of `nvjet_sm90_tst_64x32_64x16_2x4_h_bz_TNT`. The number that
/// a compiler appends to its kernels (`triton_poi_fused_add_0`) is removed too.
fn without_tiles(name: &str) -> &str {
    let is_tile = |part: &str| {
        let part = part.strip_prefix("tilesize").unwrap_or(part);
        let mut sizes = part.split('x');
        sizes.clone().count() >= 2
            && sizes.all(|size| !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut end = 0;
    for part in name.split('_') {
        if is_tile(part) && end > 0 {
            return &name[..end - 1];
        }
        end += part.len() + 1;
    }
    if name.starts_with("triton_") {
        return name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPLIT_K: &str = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, 0, float, \
         __nv_bfloat16, __nv_bfloat16, 1, 0, 0, 0>(cublasLt::cublasSplitKParams<T6>, const T4 *, const T10 *, T9 *)";

    #[test]
    fn families_of_real_kernels() {
        let table: &[(&str, &str)] = &[
            ("copy2d_bf16", "copy2d_bf16"),
            ("nvjet_sm90_tst_64x32_64x16_2x4_h_bz_TNT", "nvjet_sm90_tst"),
            ("nvjet_sm90_tst_64x64_64x13_4x2_h_bz_splitK_TNT", "nvjet_sm90_tst"),
            (SPLIT_K, "cublasLt::splitKreduce_kernel"),
            ("void gemv_kernel<float, 4>(float const*, int)", "gemv_kernel"),
            ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "ampere_bf16_s16816gemm_bf16"),
            (
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
            ),
            (
                "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(T1::Params)",
                "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16",
            ),
            (
                "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>, A, B>>(Params)",
                "GemmUniversal",
            ),
            (
                "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, (bool)1, (int)7>(T13)",
                "gemvx::kernel",
            ),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, \
                 at::detail::Array<char *, 3>>(int, T2, T3)",
                "vectorized_elementwise_kernel<CUDAFunctor_add>",
            ),
            (
                "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::\
                 [lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)], Array<char *, 2>, 4>(int, T1)",
                "unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
            ),
            ("void (anonymous namespace)::softmax_warp_forward<float, 10>(float*)", "softmax_warp_forward"),
            (
                "void flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)64>, (bool)0>(Flash_fwd_params)",
                "flash_fwd_kernel",
            ),
            ("triton_poi_fused_add_mul_12", "triton_poi_fused_add_mul"),
            ("_Z11gemv_kernelIfLi4EEvPKT_i", "gemv_kernel"),
            ("_Znonsense", "_Znonsense"),
            ("[CUDA memset]", "[CUDA memset]"),
            ("(other kernels)", "(other kernels)"),
        ];
        for (name, wanted) in table {
            assert_eq!(family(name), *wanted, "{name}");
        }
    }

    #[test]
    fn the_function_is_what_ncu_matches() {
        for (name, wanted) in [
            (SPLIT_K, "splitKreduce_kernel"),
            ("_Z11gemv_kernelIfLi4EEvPKT_i", "gemv_kernel"),
            ("void at::native::reduce_kernel<512, 1, Op<float>>(Op)", "reduce_kernel"),
            ("rope_bf16", "rope_bf16"),
        ] {
            assert_eq!(function(name), wanted);
            assert_eq!(ncu_regex(name), format!("^{wanted}$"));
        }
        assert_eq!(ncu_regex("k.x"), "^k\\.x$");
    }

    proptest! {
        #[test]
        fn any_name_has_a_family(name in "[a-zA-Z_:<>(),0-9*& -]{1,60}|_Z[a-zA-Z0-9_]{0,40}|.{1,20}") {
            prop_assert!(name.trim().is_empty() || !family(&name).is_empty());
            let _ = ncu_regex(&name);
        }
    }
}
