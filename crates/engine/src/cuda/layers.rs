//! All layers of a decode step as one kernel, for small dense models on compute capability 9.0; `kernels/layers.cu` has the kernels.

// Reason: launching a kernel is unsafe. The launch passes the parameters of its kernel, on buffers whose sizes are checked.
#![allow(unsafe_code)]

use super::{
    error::CudaError,
    gpu::{Buffer, Gpu, Shape},
    kernels::{HeadTransform, Kernels, KvCache, Matrix, Values},
    sizes::Sizes,
};
use crate::launch::{Arg, Heads, Launch};
use llm_cost::{ModelSpec, spec::Activation};
use llmprof_config::{Dtype, KvCacheDtype};

/// Columns of the intermediate are divided in multiples of this, as in `layers_block.cuh`.
const CHUNK: usize = 32;
/// Maximum rows of a GEMM in a block.
const PART_ROWS: usize = 256;
/// Maximum columns of the intermediate in a cluster.
const MOST_COLUMNS: usize = 1024;
/// A sum counts its contributions in eight bits.
const MOST_CONTRIBUTIONS: usize = 255;
/// Warps that multiply, one that copies, one that keeps the residual vector.
const THREADS: usize = (8 + 2) * 32;
/// The maximum on 9.0; most of it is the ring through which weights stream.
const SHARED_BYTES: usize = 227 << 10;
/// Maximum positions of a sequence for which the kernel is used. It reads the cache with only the few dozen blocks that
/// have a key/value head, while the separate attention kernel uses all blocks: the larger the share of attention in a
/// step, the less this kernel gains.
const MOST_POSITIONS: usize = 8192;

/// The sizes that a kernel is compiled for.
#[derive(Debug, PartialEq, Eq)]
pub struct Instance {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    intermediate: usize,
    /// Blocks of a cluster, the fastest first. A GPU may not support clusters of 16.
    clusters: &'static [usize],
}

/// The names of [`INSTANCES`] in `conf/model`.
#[cfg(test)]
pub const MODELS: [&str; 4] = ["qwen2_5_0_5b", "qwen3_0_6b", "smollm2_360m", "smollm2_135m"];

/// The same list as in `layers.cu`.
const INSTANCES: &[Instance] = &[
    // Qwen2.5-0.5B
    Instance { hidden: 896, heads: 14, kv_heads: 2, dim: 64, intermediate: 4864, clusters: &[16, 8] },
    // Qwen3-0.6B
    Instance { hidden: 1024, heads: 16, kv_heads: 8, dim: 128, intermediate: 3072, clusters: &[8] },
    // SmolLM2-360M
    Instance { hidden: 960, heads: 15, kv_heads: 5, dim: 64, intermediate: 2560, clusters: &[16, 8] },
    // SmolLM2-135M
    Instance { hidden: 576, heads: 9, kv_heads: 3, dim: 64, intermediate: 1536, clusters: &[16, 8] },
];

impl Instance {
    /// The instance for an unquantised model; `None` if no instance supports the model.
    pub fn find(spec: &ModelSpec, dtype: Dtype, sizes: &Sizes) -> Option<&'static Instance> {
        let Sizes { cache, step, .. } = *sizes;
        let one_sequence = cache.batch == 1 && step <= 1 && cache.positions <= MOST_POSITIONS;
        let plain = dtype == Dtype::Bf16 && cache.dtype == KvCacheDtype::Auto;
        let sees_all = |layer| spec.window_of_layer(layer).is_none_or(|window| window >= cache.positions);
        let simple = spec.experts.is_none()
            && spec.activation == Activation::Silu
            && spec.score_softcap.is_none()
            && spec.local_rope_theta.is_none()
            && !spec.post_norms
            && !spec.output_bias
            && !spec.sinks
            && (0..spec.layers).all(sees_all);
        if !(one_sequence && plain && simple && spec.layers > 0) {
            return None;
        }
        let sizes = (spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.intermediate);
        INSTANCES.iter().find(|i| (i.hidden, i.heads, i.kv_heads, i.dim, i.intermediate) == sizes)
    }

    fn kernel(&self, cluster: usize) -> String {
        format!("decode_layers_{}_{}_{cluster}_bf16", self.hidden, self.intermediate)
    }

    /// Divides a layer among `clusters`: key/value heads round-robin, then columns so that all read the same number of
    /// bytes with `context` positions in the cache. `None` if a cluster would have more than fits.
    fn shares(&self, clusters: usize, cluster: usize, context: usize) -> Option<Vec<Share>> {
        let group = self.heads / self.kv_heads;
        let of_head = (2 * group + 2) * self.dim * self.hidden + 2 * context * self.dim;
        let of_columns = 3 * self.hidden * CHUNK;
        let mut first_kv = 0;
        let mut shares: Vec<Share> = (0..clusters)
            .map(|i| {
                // The first clusters have one more.
                let kvs = self.kv_heads / clusters + usize::from(i < self.kv_heads % clusters);
                let share = Share { first_kv, kvs, ..Share::default() };
                first_kv += kvs;
                share
            })
            .collect();
        for _ in 0..self.intermediate / CHUNK {
            let load = |share: &Share| share.kvs * of_head + share.columns / CHUNK * of_columns;
            shares.iter_mut().min_by_key(|share| load(share))?.columns += CHUNK;
        }
        let mut first_column = 0;
        for share in &mut shares {
            share.first_column = first_column;
            first_column += share.columns;
        }
        // Rows of gate and up in tiles of eight pairs.
        let fits = |share: &Share| {
            let pairs = (share.columns / cluster).next_multiple_of(8);
            share.columns <= MOST_COLUMNS && 2 * pairs <= PART_ROWS
        };
        let counted = clusters <= MOST_CONTRIBUTIONS && self.kv_heads <= MOST_CONTRIBUTIONS;
        (counted && shares.iter().all(fits)).then_some(shares)
    }
}

/// The share of a cluster in each layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    first_kv: usize,
    kvs: usize,
    first_column: usize,
    columns: usize,
}

/// A layer as the kernel reads it.
pub struct FusedLayer<'a> {
    pub qkv: &'a Matrix,
    pub bias: Option<&'a Buffer>,
    pub output: &'a Matrix,
    pub gate_up: &'a Matrix,
    pub down: &'a Matrix,
    pub input_norm: &'a Buffer,
    pub mlp_norm: &'a Buffer,
    pub query_norm: Option<&'a Buffer>,
    pub key_norm: Option<&'a Buffer>,
    pub cache: KvCache<'a>,
}

impl FusedLayer<'_> {
    /// The addresses in the order of `Layer` in `layers_block.cuh`. `None` if weights are quantised.
    fn addresses(
        &self,
        launch: Launch<'_>,
        instance: &Instance,
        heads: &Heads,
    ) -> Result<Option<[u64; 11]>, CudaError> {
        let Instance { hidden, dim, intermediate, .. } = *instance;
        let attended = heads.heads * dim;
        let matrices = [
            ("q, k and v", self.qkv, heads.columns(), hidden),
            ("the output projection", self.output, hidden, attended),
            ("gate and up", self.gate_up, 2 * intermediate, hidden),
            ("down", self.down, hidden, intermediate),
        ];
        let mut weights = [0; 4];
        for ((name, matrix, rows, columns), address) in matrices.into_iter().zip(&mut weights) {
            let Values::Plain(values) = &matrix.values else { return Ok(None) };
            launch.require_room(name, values.bytes(), 2, &[rows, columns])?;
            // Rows are copied by the copy engine, which needs aligned addresses.
            launch.require_alignment(name, values.address(), 16)?;
            *address = values.address();
        }
        let vectors = [
            ("the bias", self.bias, 2, heads.columns()),
            ("the norm before attention", Some(self.input_norm), 4, hidden),
            ("the norm before the MLP", Some(self.mlp_norm), 4, hidden),
            ("the query norm", self.query_norm, 4, dim),
            ("the key norm", self.key_norm, 4, dim),
        ];
        for (name, vector, element, len) in vectors {
            let Some(vector) = vector else { continue };
            launch.require_room(name, vector.bytes(), element, &[len])?;
            launch.require_alignment(name, vector.address(), 16)?;
        }
        launch.require(self.query_norm.is_some() == self.key_norm.is_some(), || {
            "only one of queries and keys has a norm".to_owned()
        })?;
        let KvCache { keys, values, slots, .. } = self.cache;
        for (name, cache) in [("the key cache", keys), ("the value cache", values)] {
            launch.require_room(name, cache.bytes(), 2, &[heads.kv_heads, slots, dim])?;
            launch.require_alignment(name, cache.address(), 16)?;
        }
        launch.require(slots == heads.capacity, || {
            format!("the cache keeps {slots} of {} positions", heads.capacity)
        })?;
        let [qkv, output, gate_up, down] = weights;
        let or_null = |buffer: Option<&Buffer>| buffer.map_or(0, Buffer::address);
        Ok(Some([
            qkv,
            or_null(self.bias),
            output,
            gate_up,
            down,
            self.input_norm.address(),
            self.mlp_norm.address(),
            or_null(self.query_norm),
            or_null(self.key_norm),
            keys.address(),
            values.address(),
        ]))
    }
}

/// The kernel for the layers of a decode step, and its buffers. It keeps the addresses of the layers, which must
/// outlive it.
pub struct FusedLayers {
    kernel: String,
    hidden: usize,
    layer_count: usize,
    shape: Shape,
    layers: Buffer,
    shares: Buffer,
    mlp_clusters: usize,
    /// Two sets: a step uses one and clears the other.
    sums: Buffer,
    /// Finished steps and finished blocks.
    state: Buffer,
}

impl FusedLayers {
    /// `None` if the GPU cannot run the whole grid concurrently.
    pub fn new(
        gpu: &Gpu,
        instance: &Instance,
        of: &[FusedLayer<'_>],
        heads: &Heads,
        sizes: &Sizes,
    ) -> Result<Option<FusedLayers>, CudaError> {
        if !gpu.runs_hopper_kernels() || gpu.shared_bytes < SHARED_BYTES {
            return Ok(None);
        }
        // Positions in the cache at a step in the middle of a request.
        let context = sizes.prompt.midpoint(sizes.cache.positions);
        for &cluster in instance.clusters {
            let kernel = instance.kernel(cluster);
            let launch = Launch::new(&kernel);
            let shape = |clusters: usize| Shape {
                shared_bytes: SHARED_BYTES,
                cluster,
                at_once: true,
                ..Shape::early((clusters * cluster, 1, 1), THREADS)
            };
            let clusters = gpu.clusters_at_once(launch, shape(gpu.multiprocessors / cluster));
            let Some(shares) = instance.shares(clusters, cluster, context) else { continue };
            let mut layers = Vec::new();
            for layer in of {
                let Some(addresses) = layer.addresses(launch, instance, heads)? else { return Ok(None) };
                layers.extend(addresses);
            }
            let mut numbers = Vec::new();
            for Share { first_kv, kvs, first_column, columns } in &shares {
                for number in [first_kv, kvs, first_column, columns] {
                    numbers.push(launch.int("a share", *number)?);
                }
            }
            let what = "the layers' kernel";
            let buffers = FusedLayers {
                hidden: instance.hidden,
                layer_count: of.len(),
                shape: shape(clusters),
                layers: gpu.alloc(what, size_of_val(layers.as_slice()))?,
                shares: gpu.alloc(what, size_of_val(numbers.as_slice()))?,
                mlp_clusters: shares.iter().filter(|share| share.columns > 0).count(),
                sums: gpu.zeros(what, 4 * of.len() * instance.hidden * 8)?,
                state: gpu.zeros(what, 2 * 4)?,
                kernel,
            };
            gpu.upload(&buffers.layers, &layers)?;
            gpu.upload(&buffers.shares, &numbers)?;
            return Ok(Some(buffers));
        }
        Ok(None)
    }
}

impl Kernels {
    /// Computes all layers on x in place, at the position in `progress`; keys and values go to the caches.
    ///
    /// # Safety
    /// The position in `progress` is below the capacity, and the layers of `fused` live.
    pub unsafe fn decode_layers(
        &self,
        fused: &FusedLayers,
        x: &Buffer,
        transform: &HeadTransform<'_>,
        progress: &Buffer,
        heads: &Heads,
    ) -> Result<(), CudaError> {
        let launch = Launch::new(&fused.kernel);
        launch.require_room("x", x.bytes(), 2, &[fused.hidden])?;
        launch.require_room("the progress", progress.bytes(), 4, &[1])?;
        for (name, table) in [("the cosines", transform.cosines), ("the sines", transform.sines)] {
            launch.require_room(name, table.bytes(), 4, &[heads.capacity, heads.dim / 2])?;
        }
        let args = [
            (&fused.layers).into(),
            (&fused.shares).into(),
            x.into(),
            progress.into(),
            transform.cosines.into(),
            transform.sines.into(),
            (&fused.sums).into(),
            (&fused.state).into(),
            launch.arg("layers", fused.layer_count)?,
            launch.arg("the slots", heads.capacity)?,
            launch.arg("clusters", fused.mlp_clusters)?,
            Arg::Float(transform.eps),
            Arg::Float(heads.scale),
        ];
        // SAFETY: the kernel's parameters, on buffers of these sizes, those of the layers checked when they were collected; the caller
        // guarantees the rest.
        unsafe { self.gpu.launch(launch, fused.shape, &args) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kv::KvShape;

    fn qwen() -> ModelSpec {
        ModelSpec::from_hf(&json!({
            "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "max_position_embeddings": 32768, "tie_word_embeddings": true
        }))
        .unwrap()
    }

    #[test]
    fn a_model_has_a_kernel_only_if_it_supports_everything() {
        let sizes = Sizes { cache: KvShape::from((1, 640)), prompt: 512, step: 1 };
        let of = |spec: &ModelSpec, sizes: &Sizes| Instance::find(spec, Dtype::Bf16, sizes).map(|i| i.hidden);
        assert_eq!(of(&qwen(), &sizes), Some(896));
        for dtype in [Dtype::F16, Dtype::F32] {
            assert_eq!(Instance::find(&qwen(), dtype, &sizes), None);
        }
        let cache = |batch, positions, dtype| Sizes { cache: KvShape { batch, positions, dtype }, ..sizes };
        for (sizes, expected) in [
            (cache(1, MOST_POSITIONS, KvCacheDtype::Auto), Some(896)),
            (cache(1, MOST_POSITIONS + 1, KvCacheDtype::Auto), None),
            (cache(2, 640, KvCacheDtype::Auto), None),
            (cache(1, 640, KvCacheDtype::Fp8), None),
            (cache(1, 640, KvCacheDtype::Q8_0), None),
            (Sizes { step: 0, ..sizes }, Some(896)),
            (Sizes { step: 5, ..sizes }, None),
        ] {
            assert_eq!(of(&qwen(), &sizes), expected, "{sizes:?}");
        }
        let windowed = |window| ModelSpec {
            sliding_window: Some(window),
            windowed_layers: (0..24).map(|layer| layer == 23).collect(),
            ..qwen()
        };
        for (name, spec, expected) in [
            ("a window beyond the context", windowed(640), Some(896)),
            ("a window", windowed(639), None),
            ("another width", ModelSpec { intermediate: 4896, ..qwen() }, None),
            ("other heads", ModelSpec { kv_heads: 14, ..qwen() }, None),
            ("an activation", ModelSpec { activation: Activation::GeluTanh, ..qwen() }, None),
            ("capped scores", ModelSpec { score_softcap: Some(50.0), ..qwen() }, None),
            ("norms after", ModelSpec { post_norms: true, ..qwen() }, None),
            ("a bias", ModelSpec { output_bias: true, ..qwen() }, None),
            ("two rotary bases", ModelSpec { local_rope_theta: Some(1e4), ..qwen() }, None),
            ("fewer layers", ModelSpec { layers: 3, ..qwen() }, Some(896)),
        ] {
            assert_eq!(of(&spec, &sizes), expected, "{name}");
        }
    }

    #[test]
    fn built_in_models_have_their_kernel() {
        let tree = llmprof_config::built_in();
        assert_eq!(MODELS.len(), INSTANCES.len());
        for (name, instance) in MODELS.iter().zip(INSTANCES) {
            let composed = llmprof_config::compose(&tree, &[format!("model={name}")]).unwrap();
            let spec = ModelSpec::from_hf(&composed.config.model.arch).unwrap();
            let sizes = Sizes { cache: KvShape::from((1, 640)), prompt: 512, step: 1 };
            assert_eq!(Instance::find(&spec, Dtype::Bf16, &sizes), Some(instance), "{name}");
        }
    }

    #[test]
    fn clusters_share_heads_and_columns() {
        for instance in INSTANCES {
            for &cluster in instance.clusters {
                for clusters in [132 / cluster - 1, 132 / cluster] {
                    let shares = instance.shares(clusters, cluster, 512).expect("an H200 has room");
                    let heads: usize = shares.iter().map(|share| share.kvs).sum();
                    let columns: usize = shares.iter().map(|share| share.columns).sum();
                    assert_eq!((heads, columns), (instance.kv_heads, instance.intermediate), "{instance:?}");
                    let (mut kv, mut column) = (0, 0);
                    for share in &shares {
                        assert_eq!((share.first_kv, share.first_column), (kv, column));
                        assert!(share.columns.is_multiple_of(CHUNK));
                        (kv, column) = (kv + share.kvs, column + share.columns);
                    }
                }
            }
        }
        let qwen = &INSTANCES[0];
        // Two clusters have one head each and therefore fewer columns; the longer the context, the fewer.
        let columns = |context| -> Vec<usize> {
            qwen.shares(7, 16, context).unwrap().iter().map(|share| share.columns).collect()
        };
        let (short, long) = (columns(512), columns(8192));
        assert!(short[..2].iter().all(|n| n < &short[2]), "{short:?}");
        assert!(long[0] < short[0] && long[6] > short[6], "{long:?}");
        // Too few clusters for the columns, and no cluster.
        assert_eq!(qwen.shares(4, 16, 512), None);
        assert_eq!(qwen.shares(0, 16, 512), None);
    }

    #[test]
    #[cfg_attr(stale_kernels, ignore = "the kernels are older than their sources")]
    fn the_kernels_are_compiled() {
        for instance in INSTANCES {
            for &cluster in instance.clusters {
                let kernel = instance.kernel(cluster);
                assert!(super::super::images::MANIFEST_JSON.contains(&format!("\"{kernel}\"")), "{kernel}");
            }
        }
    }
}
