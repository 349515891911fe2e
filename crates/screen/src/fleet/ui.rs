//! The user's selections in the fleet: pure state, changed by actions.

use std::collections::BTreeMap;

use tui_input::Input;

use super::keys::Action;
use crate::ui::{Pane, UiState};
use llmprof_analysis::fleet::{Fleet, Gpu, Key, Order, State, contains};
use llmprof_config::ThemeName;
use llmprof_event::readings::Reading;
use llmprof_record::state::RunState;

/// The overlay of the list.
#[derive(Debug, Clone, Default)]
pub enum Overlay {
    #[default]
    None,
    Help {
        scroll: usize,
    },
    Filter(Input),
}

/// The history of one GPU.
#[derive(Debug)]
pub struct Opened {
    pub gpu: Gpu,
    /// `None` until Prometheus has answered.
    pub state: Option<Box<RunState>>,
    pub error: Option<String>,
    /// The end of the history, in seconds of Unix time.
    pub end_unix_s: Option<f64>,
    pub step_s: f64,
    /// The state of the GPU pane.
    pub ui: UiState,
}

impl Opened {
    pub fn new(gpu: Gpu, theme: ThemeName) -> Opened {
        // The whole window.
        let ui = UiState { pane: Pane::Gpu, span: crate::ui::SPANS_S.len() - 1, ..UiState::new(theme) };
        Opened { gpu, state: None, error: None, end_unix_s: None, step_s: 0.0, ui }
    }
}

#[derive(Debug, Default)]
pub struct FleetUi {
    pub theme: ThemeName,
    pub order: Order,
    /// Whether the order is reversed; rows without a value stay last.
    pub reversed: bool,
    pub filter: String,
    /// Whether nodes are listed instead of GPUs.
    pub nodes: bool,
    /// Only the GPUs of this node are listed.
    pub node: Option<String>,
    /// The selected row, by its GPU or its node: it stays selected when it moves.
    pub selected: Option<Key>,
    pub row: usize,
    pub top: usize,
    pub overlay: Overlay,
    pub opened: Option<Opened>,
    pub message: Option<String>,
}

/// An effect that only the surrounding program can perform.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    Quit,
    Interrupt,
    Suspend,
    Refresh,
    Step(isize),
    TogglePlay,
    /// Query the history of the opened GPU.
    AskHistory,
}

/// A node with its GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Node<'a> {
    pub name: &'a str,
    /// The indexes of its rows in the fleet.
    pub rows: Vec<usize>,
    /// The sum of the losses of its GPUs, in GPUs.
    pub lost_gpus: f64,
    pub worst: State,
    pub power_w: Option<f64>,
    pub temp_max_c: Option<f64>,
    pub util_pct: Option<f64>,
}

/// The indexes of the listed rows.
pub fn listed(fleet: &Fleet, ui: &FleetUi) -> Vec<usize> {
    let shown = |i: &usize| {
        let row = &fleet.rows[*i];
        let in_node = ui.node.as_ref().is_none_or(|node| *node == fleet.gpu(row).node);
        in_node && (ui.filter.is_empty() || contains(fleet, row, &ui.filter))
    };
    fleet.sorted(ui.order, ui.reversed).into_iter().filter(shown).collect()
}

/// The nodes, those with the largest loss first; by name if they are sorted by it.
pub fn nodes<'a>(fleet: &'a Fleet, ui: &FleetUi) -> Vec<Node<'a>> {
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut names: Vec<&str> = Vec::new();
    for gpu in &fleet.snapshot.gpus {
        if names.last() != Some(&gpu.node.as_str()) && !by_name.contains_key(gpu.node.as_str()) {
            names.push(&gpu.node);
            by_name.insert(&gpu.node, Vec::new());
        }
    }
    for (i, row) in fleet.rows.iter().enumerate() {
        by_name.entry(&fleet.gpu(row).node).or_default().push(i);
    }
    let mut nodes: Vec<Node<'a>> = names
        .into_iter()
        .map(|name| {
            let mut rows = by_name.remove(name).unwrap_or_default();
            rows.sort_by_key(|i| fleet.rows[*i].at);
            node(fleet, name, rows)
        })
        .filter(|node| {
            ui.filter.is_empty() || node.rows.iter().any(|i| contains(fleet, &fleet.rows[*i], &ui.filter))
        })
        .collect();
    let descending = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) if ui.reversed => a.total_cmp(&b),
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    };
    match ui.order {
        Order::Node if ui.reversed => nodes.reverse(),
        Order::Node => {}
        Order::Lost | Order::Clock => {
            nodes.sort_by(|a, b| b.lost_gpus.total_cmp(&a.lost_gpus).then(a.worst.cmp(&b.worst)));
            if ui.reversed {
                nodes.reverse();
            }
        }
        Order::Temperature => nodes.sort_by(|a, b| descending(a.temp_max_c, b.temp_max_c)),
        Order::Power => nodes.sort_by(|a, b| descending(a.power_w, b.power_w)),
        Order::Utilisation => nodes.sort_by(|a, b| descending(a.util_pct, b.util_pct)),
    }
    nodes
}

fn node<'a>(fleet: &Fleet, name: &'a str, rows: Vec<usize>) -> Node<'a> {
    let values = |reading: Reading| -> Vec<f64> {
        rows.iter().filter_map(|i| fleet.gpu(&fleet.rows[*i]).get(reading)).collect()
    };
    let (power, temps, utils) = (values(Reading::Power), values(Reading::Temp), values(Reading::GpuUtil));
    let some = |values: &[f64], value: f64| (!values.is_empty()).then_some(value);
    Node {
        name,
        lost_gpus: rows.iter().filter_map(|i| fleet.rows[*i].loss).map(|loss| loss.lost_pct / 100.0).sum(),
        worst: rows.iter().map(|i| fleet.rows[*i].state).min().unwrap_or(State::Unknown),
        power_w: some(&power, power.iter().sum()),
        temp_max_c: temps.iter().copied().reduce(f64::max),
        util_pct: some(&utils, utils.iter().sum::<f64>() / utils.len().max(1) as f64),
        rows,
    }
}

impl FleetUi {
    pub fn new(theme: ThemeName, order: Order) -> FleetUi {
        FleetUi { theme, order, ..FleetUi::default() }
    }

    /// The names of the listed rows: the keys of GPUs, or nodes.
    fn keys(&self, fleet: &Fleet) -> Vec<Key> {
        match self.nodes {
            true => nodes(fleet, self).iter().map(|node| node.name.to_owned()).collect(),
            false => listed(fleet, self).iter().map(|i| fleet.gpu(&fleet.rows[*i]).key.clone()).collect(),
        }
    }

    /// Sorts by a column; if it is the current one, reverses the order.
    pub fn sort_by(&mut self, order: Order, fleet: Option<&Fleet>) {
        self.reversed = self.order == order && !self.reversed;
        (self.order, self.message) = (order, None);
        fleet.into_iter().for_each(|fleet| self.follow(fleet));
    }

    /// Finds the selected row again after the list has changed.
    pub fn follow(&mut self, fleet: &Fleet) {
        let keys = self.keys(fleet);
        let found = self.selected.as_ref().and_then(|key| keys.iter().position(|k| k == key));
        self.row = found.unwrap_or(self.row).min(keys.len().saturating_sub(1));
        // Until a row is selected, the first one is, whichever it is.
        if self.selected.is_some() {
            self.selected = keys.get(self.row).cloned();
        }
    }

    pub fn select(&mut self, row: usize, fleet: &Fleet) {
        let keys = self.keys(fleet);
        self.row = row.min(keys.len().saturating_sub(1));
        self.selected = keys.get(self.row).cloned();
    }

    /// The GPU of the selected row.
    pub fn selected_gpu<'a>(&self, fleet: &'a Fleet) -> Option<&'a Gpu> {
        let all = listed(fleet, self);
        all.get(self.row).filter(|_| !self.nodes).map(|i| fleet.gpu(&fleet.rows[*i]))
    }
}

/// Applies an action. `page` is the number of rows on the screen.
pub fn update(ui: &mut FleetUi, action: Action, fleet: Option<&Fleet>, page: usize) -> Option<Effect> {
    ui.message = None;
    match action {
        Action::Quit => return Some(Effect::Quit),
        Action::Interrupt => return Some(Effect::Interrupt),
        Action::Suspend => return Some(Effect::Suspend),
        Action::Refresh => return Some(Effect::Refresh),
        Action::Step(by) => return Some(Effect::Step(by)),
        Action::TogglePlay => return Some(Effect::TogglePlay),
        Action::Help => ui.overlay = Overlay::Help { scroll: 0 },
        Action::AskFilter => ui.overlay = Overlay::Filter(Input::new(ui.filter.clone())),
        Action::NextTheme => {
            let mut other = UiState::new(ui.theme);
            crate::ui::update(&mut other, crate::ui::Action::NextTheme, Default::default());
            ui.theme = other.theme;
        }
        Action::Sort => {
            (ui.order, ui.reversed) = (ui.order.next(), false);
            ui.message = Some(format!("sorted by {}", ui.order));
            fleet.into_iter().for_each(|fleet| ui.follow(fleet));
        }
        Action::Nodes => {
            let name = fleet.and_then(|fleet| ui.selected_gpu(fleet)).map(|gpu| gpu.node.clone());
            (ui.nodes, ui.node) = (!ui.nodes, None);
            ui.selected = name.filter(|_| ui.nodes);
            ui.row = 0;
            fleet.into_iter().for_each(|fleet| ui.follow(fleet));
        }
        Action::Move(by) => move_by(ui, by, fleet),
        Action::Page(by) => move_by(ui, by * page.max(1) as isize, fleet),
        Action::Open => return open(ui, fleet?),
        Action::Back => {
            if ui.opened.take().is_some() {
                return None;
            }
            if ui.node.take().is_some() {
                (ui.nodes, ui.selected, ui.row) = (true, None, 0);
            } else if !ui.filter.is_empty() {
                ui.filter.clear();
            } else {
                ui.message = Some("press q to quit".to_owned());
            }
            fleet.into_iter().for_each(|fleet| ui.follow(fleet));
        }
    }
    None
}

fn move_by(ui: &mut FleetUi, by: isize, fleet: Option<&Fleet>) {
    if let Some(fleet) = fleet {
        ui.select(ui.row.saturating_add_signed(by), fleet);
    }
}

fn open(ui: &mut FleetUi, fleet: &Fleet) -> Option<Effect> {
    if ui.nodes {
        let name = nodes(fleet, ui).get(ui.row).map(|node| node.name.to_owned())?;
        (ui.nodes, ui.node, ui.selected, ui.row) = (false, Some(name), None, 0);
        return None;
    }
    let gpu = ui.selected_gpu(fleet)?.clone();
    ui.opened = Some(Opened::new(gpu, ui.theme));
    Some(Effect::AskHistory)
}
