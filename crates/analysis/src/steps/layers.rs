//! The operator and the layer of each kernel of a step, by its class and its place.
//!
//! Attention kernels number the layers. GEMMs between them get their roles from the norms that separate them:
//! after attention the output projection, then the MLP, then the projections of the next layer. The last GEMM
//! is the LM head.

use super::Class;
use llm_cost::{Operator, OperatorInstance};
use llmprof_event::kernels::work::{DeviceActivity, WorkKind};

/// The role of a kernel in its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerRole {
    Attention,
    Gemm,
    Norm,
    Embedding,
    Communication,
    /// Converts operands of the GEMM after it.
    Quantise,
    Reduction,
    Other,
}

/// Operators of the works of one step, which are in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Assigned {
    pub instances: Vec<Option<OperatorInstance>>,
    pub layers: u16,
}

pub(super) fn assign(works: &[DeviceActivity], classes: &[Class]) -> Assigned {
    let parts = parts(works, classes);
    let mut instances: Vec<Option<OperatorInstance>> = vec![None; works.len()];
    // Attention kernels with a GEMM between them are of different layers.
    let mut groups: Vec<(usize, usize)> = Vec::new();
    let mut product_since = true;
    for (i, part) in parts.iter().enumerate() {
        match part {
            LayerRole::Attention if product_since => {
                groups.push((i, i));
                product_since = false;
            }
            LayerRole::Attention => {
                if let Some(last) = groups.last_mut() {
                    last.1 = i;
                }
            }
            LayerRole::Gemm => product_since = true,
            _ => {}
        }
    }
    groups.truncate(usize::from(u16::MAX));
    let layers = groups.len() as u16;
    if groups.is_empty() {
        return Assigned { instances, layers };
    }
    for (i, part) in parts.iter().enumerate() {
        if *part == LayerRole::Attention {
            let layer = groups.partition_point(|(first, _)| *first <= i).saturating_sub(1);
            instances[i] = instance(Operator::Attention, Some(layer as u16));
        }
    }
    // GEMMs before the first norm prepare positions.
    let first_norm = parts[..groups[0].0].iter().position(|part| *part == LayerRole::Norm);
    let mut before_attention = clusters(&parts, first_norm.unwrap_or(0), groups[0].0);
    if before_attention.is_empty() {
        before_attention = clusters(&parts, 0, groups[0].0);
    }
    let clusters_before_attention = before_attention.len().max(1);
    let projections: usize = before_attention.iter().map(Vec::len).sum();
    for index in before_attention.concat() {
        instances[index] = instance(Operator::Qkv, Some(0));
    }
    for (layer, (_, last)) in groups.iter().enumerate() {
        let is_last = layer + 1 == groups.len();
        let end = groups.get(layer + 1).map_or(parts.len(), |(first, _)| *first);
        let mut found = clusters(&parts, last + 1, end);
        let number = layer as u16;
        if is_last {
            if let Some(head) = found.last_mut().and_then(Vec::pop) {
                instances[head] = instance(Operator::LmHead, None);
            }
        } else {
            let next = match found.len() {
                0 => Vec::new(),
                // No norm is seen: the layer before the first attention tells how many projections there are.
                1 => {
                    let all = &mut found[0];
                    all.split_off(all.len() - projections.clamp(1, all.len()))
                }
                n => found.split_off(n - clusters_before_attention.min(n - 1)).concat(),
            };
            for index in next {
                instances[index] = instance(Operator::Qkv, Some(number + 1));
            }
        }
        found.retain(|cluster| !cluster.is_empty());
        let output = match found.len() {
            0 => continue,
            1 => {
                let mlp = found[0].split_off(1);
                let output = found.remove(0);
                found.push(mlp);
                output
            }
            _ => found.remove(0),
        };
        for index in output {
            instances[index] = instance(Operator::AttentionOutput, Some(number));
        }
        mlp(&found.concat(), classes, number, &mut instances);
    }
    fill_between(&parts, classes, &mut instances);
    Assigned { instances, layers }
}

fn instance(operator: Operator, layer: Option<u16>) -> Option<OperatorInstance> {
    Some(OperatorInstance { operator, layer })
}

/// The last GEMM of an MLP is its down projection. With experts, the plain GEMM before them is the router's.
fn mlp(products: &[usize], classes: &[Class], layer: u16, instances: &mut [Option<OperatorInstance>]) {
    let experts: Vec<usize> =
        products.iter().copied().filter(|index| classes[*index] == Class::MoeProduct).collect();
    let is_before_experts = |index: &&usize| experts.first().is_some_and(|first| *index < first);
    if let Some(router) = products.iter().rev().find(is_before_experts) {
        instances[*router] = instance(Operator::Router, Some(layer));
    }
    let products = if experts.is_empty() { products } else { &experts };
    let Some((last, others)) = products.split_last() else { return };
    for index in others {
        instances[*index] = instance(Operator::GateUp, Some(layer));
    }
    let operator = if others.is_empty() { Operator::GateUp } else { Operator::Down };
    instances[*last] = instance(operator, Some(layer));
}

/// GEMMs of a part of the step, separated by norms.
fn clusters(parts: &[LayerRole], from: usize, to: usize) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    let mut begin = true;
    for (i, part) in parts.iter().enumerate().take(to).skip(from) {
        match part {
            LayerRole::Norm => begin = true,
            LayerRole::Gemm => {
                if std::mem::take(&mut begin) || found.is_empty() {
                    found.push(Vec::new());
                }
                if let Some(cluster) = found.last_mut() {
                    cluster.push(i);
                }
            }
            _ => {}
        }
    }
    found
}

/// Attention that is not fused is a softmax between two GEMMs.
fn parts(works: &[DeviceActivity], classes: &[Class]) -> Vec<LayerRole> {
    let is_kernel = |i: usize| matches!(works[i].kind, WorkKind::Kernel { .. });
    let mut parts: Vec<LayerRole> = classes
        .iter()
        .enumerate()
        .map(|(i, class)| match class {
            _ if !is_kernel(i) => LayerRole::Other,
            Class::StateSpace => LayerRole::Attention,
            class if class.is_attention() => LayerRole::Attention,
            class if class.is_product() => LayerRole::Gemm,
            class if class.is_communication() => LayerRole::Communication,
            class if class.is_norm() => LayerRole::Norm,
            class if class.is_embedding() => LayerRole::Embedding,
            Class::Quantise => LayerRole::Quantise,
            Class::ProductReduction => LayerRole::Reduction,
            _ => LayerRole::Other,
        })
        .collect();
    if parts.contains(&LayerRole::Attention) {
        return parts;
    }
    let mut last_product: Option<usize> = None;
    let mut softmax: Option<(Option<usize>, usize)> = None;
    for i in 0..parts.len() {
        if parts[i] == LayerRole::Gemm {
            if let Some((before, at)) = softmax.take() {
                let attention = [before, Some(at), Some(i)];
                attention.into_iter().flatten().for_each(|index| parts[index] = LayerRole::Attention);
                last_product = None;
            } else {
                last_product = Some(i);
            }
        } else if is_kernel(i) && classes[i].is_softmax() {
            softmax = Some((last_product, i));
        } else if is_kernel(i) && classes[i].is_sampling() {
            softmax = None;
        }
    }
    parts
}

fn is_routing(class: Class) -> bool {
    matches!(class, Class::MoeRouter | Class::MoePermute)
}

/// Norms, rotary embedding, activations, sampling: what is between two GEMMs belongs to the one or the other.
fn fill_between(parts: &[LayerRole], classes: &[Class], instances: &mut [Option<OperatorInstance>]) {
    use Operator as O;
    let mut next: Option<OperatorInstance> = None;
    let following: Vec<Option<OperatorInstance>> = instances
        .iter()
        .rev()
        .map(|instance| {
            let after = next;
            next = instance.or(next);
            after
        })
        .collect();
    let mut before: Option<OperatorInstance> = None;
    let mut normed = false;
    // After the experts, until the next norm: what they give is added up.
    let mut after_experts = false;
    for i in 0..instances.len() {
        if instances[i].is_some() {
            before = instances[i];
            after_experts = classes[i] == Class::MoeProduct;
            continue;
        }
        after_experts &= parts[i] != LayerRole::Norm;
        let after = following[instances.len() - 1 - i];
        normed |= parts[i] == LayerRole::Norm;
        let layer = |of: Option<OperatorInstance>| of.and_then(|instance| instance.layer);
        let operator = |of: Option<OperatorInstance>| of.map(|instance| instance.operator);
        instances[i] = match parts[i] {
            // A GEMM that is neither of the MLP nor a router's has no operator.
            LayerRole::Communication | LayerRole::Gemm => None,
            LayerRole::Quantise => after,
            LayerRole::Reduction => before,
            _ => match (operator(before), operator(after)) {
                (None, Some(_)) if classes[i].is_embedding() => instance(O::Embedding, None),
                (None, Some(O::Qkv)) if normed => instance(O::AttentionNorm, layer(after)),
                (Some(O::Qkv), Some(O::Qkv | O::Attention)) => instance(O::Rope, layer(before)),
                (Some(O::Attention), Some(O::AttentionOutput | O::Attention)) => {
                    instance(O::Attention, layer(before))
                }
                (Some(O::AttentionOutput), Some(O::GateUp)) if is_routing(classes[i]) => {
                    instance(O::Router, layer(after))
                }
                (Some(O::AttentionOutput), Some(O::GateUp | O::Router)) => instance(O::MlpNorm, layer(after)),
                (Some(O::Router), Some(O::GateUp)) => instance(O::Router, layer(before)),
                (Some(O::Down | O::GateUp), Some(O::Qkv | O::LmHead)) if after_experts => before,
                (Some(O::GateUp), Some(O::GateUp | O::Down)) => instance(O::Activation, layer(before)),
                (Some(O::Down | O::GateUp | O::AttentionOutput), Some(O::Qkv)) => {
                    instance(O::AttentionNorm, layer(after))
                }
                (Some(O::Down | O::GateUp), Some(O::LmHead)) => instance(O::FinalNorm, None),
                (Some(O::LmHead), None) => instance(O::Sampling, None),
                _ if classes[i].is_activation() && operator(before) == Some(O::GateUp) => {
                    instance(O::Activation, layer(before))
                }
                _ => None,
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::kernels::work::{KernelLaunch, NameId};

    fn operators(classes: &[Class]) -> (u16, Vec<String>) {
        let launch = KernelLaunch { grid: [1; 3], block: [1; 3], registers: 0, shared_bytes: 0 };
        let works: Vec<DeviceActivity> = (0..classes.len() as u64)
            .map(|i| DeviceActivity {
                start_ns: 1 + i,
                end_ns: 2 + i,
                stream: 0,
                device: 0,
                correlation: 0,
                graph: None,
                kind: WorkKind::Kernel { name: NameId(1), launch },
            })
            .collect();
        let assigned = assign(&works, classes);
        let text = |instance: &Option<OperatorInstance>| match instance {
            Some(OperatorInstance { operator, layer: Some(layer) }) => format!("{operator}{layer}"),
            Some(OperatorInstance { operator, layer: None }) => operator.to_string(),
            None => "-".to_owned(),
        };
        (assigned.layers, assigned.instances.iter().map(text).collect())
    }

    fn check(classes: &[Class], wanted: &str) {
        let (_, found) = operators(classes);
        assert_eq!(found.join(" "), wanted);
    }

    use Class as C;

    #[test]
    fn fused_projections() {
        let layer = [
            C::Norm,
            C::Product,
            C::Rope,
            C::KvWrite,
            C::Attention,
            C::AttentionCombine,
            C::Product,
            C::Norm,
            C::Product,
            C::Activation,
            C::Product,
        ];
        let step =
            [&[C::Embedding][..], &layer, &layer, &[C::Norm, C::Product, C::ProductReduction, C::Sampling]]
                .concat();
        check(
            &step,
            "embedding attn_norm0 qkv0 rope0 rope0 attention0 attention0 attn_out0 mlp_norm0 gate_up0 activation0 down0 \
             attn_norm1 qkv1 rope1 rope1 attention1 attention1 attn_out1 mlp_norm1 gate_up1 activation1 down1 \
             final_norm lm_head lm_head sampling",
        );
        assert_eq!(operators(&step).0, 2);
    }

    #[test]
    fn separate_projections_as_pytorch_runs_them() {
        let layer = [
            C::Elementwise,
            C::Norm,
            C::Product,
            C::Product,
            C::Product,
            C::Elementwise,
            C::Attention,
            C::Product,
            C::Elementwise,
            C::Norm,
            C::Product,
            C::Activation,
            C::Product,
            C::Elementwise,
            C::Product,
        ];
        let step = [&[C::Embedding][..], &layer, &layer, &[C::Norm, C::Product, C::Sampling]].concat();
        check(
            &step,
            "embedding - attn_norm0 qkv0 qkv0 qkv0 rope0 attention0 attn_out0 mlp_norm0 mlp_norm0 gate_up0 activation0 \
             gate_up0 activation0 down0 attn_norm1 attn_norm1 qkv1 qkv1 qkv1 rope1 attention1 attn_out1 mlp_norm1 mlp_norm1 \
             gate_up1 activation1 gate_up1 activation1 down1 final_norm lm_head sampling",
        );
    }

    #[test]
    fn attention_of_two_products_and_a_softmax() {
        let layer = [
            C::Norm,
            C::Product,
            C::Rope,
            C::Product,
            C::Softmax,
            C::Product,
            C::Product,
            C::Norm,
            C::Product,
            C::Activation,
            C::Product,
        ];
        let step =
            [&[C::Embedding][..], &layer, &layer, &[C::Norm, C::Product, C::Softmax, C::Sampling]].concat();
        check(
            &step,
            "embedding attn_norm0 qkv0 rope0 attention0 attention0 attention0 attn_out0 mlp_norm0 gate_up0 activation0 down0 \
             attn_norm1 qkv1 rope1 attention1 attention1 attention1 attn_out1 mlp_norm1 gate_up1 activation1 down1 \
             final_norm lm_head sampling sampling",
        );
    }

    #[test]
    fn layers_without_visible_norms_and_with_experts() {
        let layer = [C::Product, C::Attention, C::Product, C::Product, C::Product];
        let step = [&layer[..], &layer, &[C::Product]].concat();
        check(
            &step,
            "qkv0 attention0 attn_out0 gate_up0 down0 qkv1 attention1 attn_out1 gate_up1 down1 lm_head",
        );
        let layer = [
            C::Norm,
            C::Quantise,
            C::Product,
            C::Attention,
            C::Product,
            C::CustomAllReduce,
            C::Norm,
            C::Product,
            C::MoeRouter,
            C::MoeProduct,
            C::Activation,
            C::MoeProduct,
            C::MoePermute,
        ];
        let step = [&layer[..], &layer, &[C::Norm, C::Product]].concat();
        check(
            &step,
            "attn_norm0 qkv0 qkv0 attention0 attn_out0 - mlp_norm0 router0 router0 gate_up0 activation0 down0 down0 attn_norm1 \
             qkv1 qkv1 attention1 attn_out1 - mlp_norm1 router1 router1 gate_up1 activation1 down1 down1 final_norm lm_head",
        );
    }

    #[test]
    fn odd_sequences_do_not_panic() {
        assert_eq!(operators(&[]).0, 0);
        assert_eq!(operators(&[C::Product, C::Product]).0, 0);
        assert_eq!(operators(&[C::Attention]).0, 1);
        assert_eq!(operators(&[C::Attention, C::Attention, C::Product, C::Attention]).0, 2);
        assert_eq!(operators(&[C::Softmax, C::Sampling]).0, 0);
    }
}
