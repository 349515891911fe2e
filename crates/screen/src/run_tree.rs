//! The recorded runs as a tree: experiments, their models, their sweeps and pairs. A group with one child has no level
//! of its own.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use super::ui::{Arrangement, GroupKey, RunOrder};
use llmprof_analysis::metrics::MetricsSummary;
use llmprof_config::Override;
use llmprof_event::Outcome;
use llmprof_record::rundir::{RunEntry, Verdict};

/// The runs, and the rows that show them.
#[derive(Debug, Clone, Default)]
pub struct RunTree {
    entries: Vec<RunEntry>,
    arrangement: Arrangement,
    /// Indices of the entries that match the filter, in order.
    listed: Vec<usize>,
    rows: Vec<TreeRow>,
    digits: Digits,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TreeRow {
    pub depth: usize,
    pub item: Item,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    Group(Group),
    Run(RunRow),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub key: GroupKey,
    pub title: String,
    pub folded: bool,
    pub runs: usize,
    pub running: usize,
    /// The lowest mean TPOT of runs that did not fail, simulated ones only if there are no others; `None` for an
    /// experiment.
    pub best_tpot_ms: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    entry: usize,
    /// The groups without a row of their own, and the name.
    pub title: String,
    pub names_groups: bool,
    /// The overrides that its neighbours do not share, with short keys.
    pub differs: String,
}

/// The identity of a row, independent of the order.
#[derive(Debug, Clone, PartialEq)]
pub enum RowKey {
    Group(GroupKey),
    Run(PathBuf),
}

/// Digits after the point, the same for every value of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digits {
    pub ttft: usize,
    pub tpot: usize,
    pub tok_s: usize,
}

impl RunTree {
    /// An empty list.
    pub const EMPTY: RunTree = RunTree {
        entries: Vec::new(),
        arrangement: Arrangement {
            filter: String::new(),
            order: RunOrder::Newest,
            reversed: false,
            toggled: std::collections::BTreeSet::new(),
        },
        listed: Vec::new(),
        rows: Vec::new(),
        digits: Digits { ttft: 0, tpot: 0, tok_s: 0 },
    };

    /// `entries` are in order of time, newest first.
    pub fn new(entries: Vec<RunEntry>, arrangement: Arrangement) -> RunTree {
        let listed = listed(&entries, &arrangement);
        let rows = Forest::new(&entries, &listed).rows(&entries, &arrangement);
        let digits = Digits {
            ttft: digits(entries.iter().filter_map(|run| run.metrics()?.ttft_ms.mean)),
            tpot: digits(entries.iter().filter_map(|run| run.metrics()?.tpot_ms.mean)),
            tok_s: digits(entries.iter().filter_map(|run| run.metrics()?.decode_tok_s)),
        };
        RunTree { entries, arrangement, listed, rows, digits }
    }

    /// Arranges the rows by `arrangement`. Returns whether they changed.
    pub fn arrange(&mut self, arrangement: &Arrangement) -> bool {
        let changed = self.arrangement != *arrangement;
        if changed {
            *self = RunTree::new(std::mem::take(&mut self.entries), arrangement.clone());
        }
        changed
    }

    /// Every run, newest first.
    pub fn entries(&self) -> &[RunEntry] {
        &self.entries
    }

    /// The runs that match the filter, in order, including folded ones.
    pub fn listed(&self) -> impl ExactSizeIterator<Item = &RunEntry> {
        self.listed.iter().map(|index| &self.entries[*index])
    }

    pub fn rows(&self) -> &[TreeRow] {
        &self.rows
    }

    pub fn digits(&self) -> Digits {
        self.digits
    }

    /// The selected row: `wanted` or, by default, the first run.
    pub fn selected(&self, wanted: Option<usize>) -> usize {
        let first_run = || self.rows.iter().position(|row| matches!(row.item, Item::Run(_))).unwrap_or(0);
        wanted.unwrap_or_else(first_run).min(self.rows.len().saturating_sub(1))
    }

    pub fn run(&self, row: &RunRow) -> &RunEntry {
        &self.entries[row.entry]
    }

    /// The run in this row, if it is not a group.
    pub fn run_at(&self, row: usize) -> Option<&RunEntry> {
        match &self.rows.get(row)?.item {
            Item::Run(run) => Some(self.run(run)),
            Item::Group(_) => None,
        }
    }

    pub fn group_at(&self, row: usize) -> Option<&Group> {
        match &self.rows.get(row)?.item {
            Item::Group(group) => Some(group),
            Item::Run(_) => None,
        }
    }

    /// The row of the group that this row is in.
    pub fn parent_of(&self, row: usize) -> Option<usize> {
        let depth = self.rows.get(row)?.depth;
        self.rows[..row].iter().rposition(|above| above.depth < depth)
    }

    pub fn key_at(&self, row: usize) -> Option<RowKey> {
        Some(match &self.rows.get(row)?.item {
            Item::Group(group) => RowKey::Group(group.key.clone()),
            Item::Run(run) => RowKey::Run(self.run(run).dir.path().to_owned()),
        })
    }

    pub fn row_of(&self, key: &RowKey) -> Option<usize> {
        self.rows.iter().position(|row| match (&row.item, key) {
            (Item::Group(group), RowKey::Group(key)) => group.key == *key,
            (Item::Run(run), RowKey::Run(path)) => self.run(run).dir.path() == path,
            _ => false,
        })
    }
}

/// Three digits of the smallest value, at most three after the point.
fn digits(values: impl Iterator<Item = f64>) -> usize {
    match values.filter(|value| *value > 0.0).min_by(f64::total_cmp) {
        Some(..0.0995) => 3,
        Some(..9.995) => 2,
        Some(..99.95) => 1,
        _ => 0,
    }
}

fn listed(entries: &[RunEntry], arrangement: &Arrangement) -> Vec<usize> {
    let filter = arrangement.filter.to_lowercase();
    let matches = |run: &RunEntry| {
        let verdict = run.verdict().to_string();
        let set = run.set().and_then(|set| set.file_name()).unwrap_or_default();
        let texts = [&run.experiment, &run.model, &run.name, &verdict, &*set.to_string_lossy()]
            .map(str::to_lowercase);
        texts.iter().any(|text| text.contains(&filter))
            || run.kind.overrides.iter().any(|text| text.to_lowercase().contains(&filter))
    };
    let mut listed: Vec<usize> = (0..entries.len()).filter(|index| matches(&entries[*index])).collect();
    let name = |index: &usize| (&entries[*index].experiment, &entries[*index].model);
    let reversed = arrangement.reversed;
    match arrangement.order {
        RunOrder::Newest if reversed => listed.reverse(),
        RunOrder::Newest => {}
        RunOrder::Fastest => by_metric(entries, &mut listed, !reversed, |m| m.decode_tok_s),
        RunOrder::Ttft => by_metric(entries, &mut listed, reversed, |m| m.ttft_ms.mean),
        RunOrder::Tpot => by_metric(entries, &mut listed, reversed, |m| m.tpot_ms.mean),
        RunOrder::Model if reversed => listed.sort_by(|a, b| name(b).cmp(&name(a))),
        RunOrder::Model => listed.sort_by(|a, b| name(a).cmp(&name(b))),
    }
    listed
}

/// Runs without the metric are last, whatever the direction.
fn by_metric(
    entries: &[RunEntry],
    listed: &mut [usize],
    descending: bool,
    metric: fn(&MetricsSummary) -> Option<f64>,
) {
    let value = |index: &usize| entries[*index].metrics().and_then(metric);
    listed.sort_by(|a, b| match (value(a), value(b)) {
        (Some(a), Some(b)) if descending => b.total_cmp(&a),
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
}

/// All groups with their children, in order.
struct Forest {
    roots: Vec<Child>,
    groups: Vec<(GroupKey, Vec<Child>)>,
}

#[derive(Clone, Copy)]
enum Child {
    Group(usize),
    Run(usize),
}

impl Forest {
    fn new(entries: &[RunEntry], listed: &[usize]) -> Forest {
        let mixed = Mixed::new(entries);
        let mut forest = Forest { roots: Vec::new(), groups: Vec::new() };
        let mut known: HashMap<GroupKey, usize> = HashMap::new();
        for index in listed.iter().copied() {
            let mut parent: Option<usize> = None;
            for key in mixed.path_of(&entries[index]) {
                let group = *known.entry(key).or_insert_with_key(|key| {
                    forest.groups.push((key.clone(), Vec::new()));
                    let group = forest.groups.len() - 1;
                    forest.children(parent).push(Child::Group(group));
                    group
                });
                parent = Some(group);
            }
            forest.children(parent).push(Child::Run(index));
        }
        forest
    }

    fn children(&mut self, parent: Option<usize>) -> &mut Vec<Child> {
        match parent {
            Some(group) => &mut self.groups[group].1,
            None => &mut self.roots,
        }
    }

    fn rows(&self, entries: &[RunEntry], arrangement: &Arrangement) -> Vec<TreeRow> {
        let mut rows = Vec::new();
        self.add_rows(&self.roots, 0, (entries, arrangement), &mut rows);
        rows
    }

    fn add_rows(
        &self,
        children: &[Child],
        depth: usize,
        about: (&[RunEntry], &Arrangement),
        rows: &mut Vec<TreeRow>,
    ) {
        let (entries, arrangement) = about;
        let beside = Shared::new(children, entries);
        for child in children {
            let (mut child, mut titles, mut shared) = (*child, Vec::new(), &beside);
            let alone = Shared::default();
            while let Child::Group(group) = child
                && let (key, [only]) = (&self.groups[group].0, &self.groups[group].1[..])
            {
                titles.push(title(key));
                (child, shared) = (*only, &alone);
            }
            match child {
                Child::Run(entry) => {
                    let run = &entries[entry];
                    titles.push(name(run));
                    let names_groups = titles.len() > 1;
                    let differs = shared.differing(run, names_groups);
                    let item = Item::Run(RunRow { entry, title: titles.join(" / "), names_groups, differs });
                    rows.push(TreeRow { depth, item });
                }
                Child::Group(group) => {
                    let (key, below) = &self.groups[group];
                    titles.push(title(key));
                    let is_set = matches!(key, GroupKey::Sweep(_) | GroupKey::Pairs(_));
                    let starts_folded = is_set && arrangement.filter.is_empty();
                    let folded = starts_folded != arrangement.toggled.contains(key);
                    let runs = self.runs_below(below);
                    let item = Item::Group(Group {
                        key: key.clone(),
                        title: titles.join(" / "),
                        folded,
                        running: runs.iter().filter(|run| entries[**run].running).count(),
                        best_tpot_ms: best_tpot_ms(key, runs.iter().map(|run| &entries[*run])),
                        runs: runs.len(),
                    });
                    rows.push(TreeRow { depth, item });
                    if !folded {
                        self.add_rows(below, depth + 1, about, rows);
                    }
                }
            }
        }
    }

    fn runs_below(&self, children: &[Child]) -> Vec<usize> {
        let below = |child: &Child| match child {
            Child::Run(entry) => vec![*entry],
            Child::Group(group) => self.runs_below(&self.groups[*group].1),
        };
        children.iter().flat_map(below).collect()
    }
}

fn best_tpot_ms<'a>(key: &GroupKey, runs: impl Iterator<Item = &'a RunEntry> + Clone) -> Option<f64> {
    let has_failed = |run: &RunEntry| run.verdict() == Verdict::Ended(Outcome::Failed);
    let best = |simulated: bool| {
        let counted = runs.clone().filter(|run| run.simulated() == simulated && !has_failed(run));
        counted.filter_map(|run| run.metrics()?.tpot_ms.mean).min_by(f64::total_cmp)
    };
    match key {
        GroupKey::Experiment(_) => None,
        GroupKey::Model(..) | GroupKey::Sweep(_) | GroupKey::Pairs(_) => best(false).or_else(|| best(true)),
    }
}

/// Sweeps and pairs whose runs differ in experiment or model, and therefore belong to no single one.
struct Mixed<'a> {
    experiments: HashMap<&'a PathBuf, HashSet<&'a str>>,
    models: HashMap<&'a PathBuf, HashSet<&'a str>>,
}

impl<'a> Mixed<'a> {
    fn new(entries: &'a [RunEntry]) -> Mixed<'a> {
        let mut mixed = Mixed { experiments: HashMap::new(), models: HashMap::new() };
        for run in entries {
            if let Some(set) = run.set() {
                mixed.experiments.entry(set).or_default().insert(&run.experiment);
                mixed.models.entry(set).or_default().insert(&run.model);
            }
        }
        mixed
    }

    /// The groups of a run, from the outermost.
    fn path_of(&self, run: &RunEntry) -> Vec<GroupKey> {
        if !run.answers {
            return Vec::new();
        }
        let is_one = |of: &HashMap<&PathBuf, HashSet<&str>>| {
            let names = run.set().and_then(|set| of.get(set));
            names.is_none_or(|names| names.len() == 1)
        };
        let mut path = Vec::new();
        // A run directly below the root has neither.
        if is_one(&self.experiments) && !run.experiment.is_empty() {
            path.push(GroupKey::Experiment(run.experiment.clone()));
        }
        if is_one(&self.experiments) && is_one(&self.models) && !run.model.is_empty() {
            path.push(GroupKey::Model(run.experiment.clone(), run.model.clone()));
        }
        path.extend(run.sweep.clone().map(GroupKey::Sweep));
        path.extend(run.pairs.clone().map(GroupKey::Pairs));
        path
    }
}

/// The overrides that all neighbouring runs share.
#[derive(Default)]
struct Shared<'a> {
    overrides: HashSet<&'a str>,
}

impl<'a> Shared<'a> {
    fn new(children: &[Child], entries: &'a [RunEntry]) -> Shared<'a> {
        let mut runs = children.iter().filter_map(|child| match child {
            Child::Run(entry) => Some(&entries[*entry]),
            Child::Group(_) => None,
        });
        let overrides = |run: &'a RunEntry| run.kind.overrides.iter().map(String::as_str);
        let (Some(first), Some(second)) = (runs.next(), runs.next()) else { return Shared::default() };
        let mut shared: HashSet<&str> = overrides(first).collect();
        for run in std::iter::once(second).chain(runs) {
            let own: HashSet<&str> = overrides(run).collect();
            shared.retain(|text| own.contains(text));
        }
        Shared { overrides: shared }
    }

    /// The other overrides of `run`: `batch_size=4`. Without the model and the experiment if the title names them.
    fn differing(&self, run: &RunEntry, is_titled: bool) -> String {
        let short = |text: &String| {
            let (key, value) = Override::split(text);
            let named = is_titled && matches!(key, "model" | "experiment");
            (!named && !value.is_empty())
                .then(|| format!("{}={value}", key.rsplit('.').next().unwrap_or(key)))
        };
        let others = run.kind.overrides.iter().filter(|text| !self.overrides.contains(text.as_str()));
        others.filter_map(short).collect::<Vec<_>>().join(" ")
    }
}

fn title(key: &GroupKey) -> String {
    match key {
        GroupKey::Experiment(name) | GroupKey::Model(_, name) => name.clone(),
        GroupKey::Sweep(dir) => format!("sweep {}", short_name(dir)),
        GroupKey::Pairs(dir) => format!("pairs {}", short_name(dir)),
    }
}

fn short_name(dir: &Path) -> String {
    short_time(&dir.file_name().unwrap_or_default().to_string_lossy())
}

fn name(run: &RunEntry) -> String {
    match &run.sweep {
        Some(_) => format!("job {}", run.name),
        None => short_time(&run.name),
    }
}

/// A name that is a time, without the year: `01-31 12:00:59`. Other names are unchanged.
fn short_time(name: &str) -> String {
    let shape = |c: char| if c.is_ascii_digit() { '0' } else { c };
    let is_time =
        name.get(..19).is_some_and(|time| time.chars().map(shape).eq("0000-00-00_00-00-00".chars()));
    match is_time {
        true => format!("{} {}{}", &name[5..10], name[11..19].replace('-', ":"), &name[19..]),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_record::rundir::RunKind;

    fn run(path: &str, overrides: &[&str]) -> RunEntry {
        let dir = Path::new("runs").join(path);
        let mut names = path.rsplit('/').map(str::to_owned);
        let (name, model, experiment) =
            (names.next().unwrap(), names.next().unwrap_or_default(), names.next().unwrap_or_default());
        RunEntry {
            name,
            model,
            experiment,
            answers: true,
            kind: RunKind {
                overrides: overrides.iter().map(|o| (*o).to_owned()).collect(),
                ..RunKind::default()
            },
            ..RunEntry::silent(Path::new("runs"), &dir)
        }
    }

    fn job(nth: usize, model: &str, overrides: &[&str]) -> RunEntry {
        let run = run(&format!("base/multirun/2026-01-01_12-00-00/{nth}"), overrides);
        let sweep = run.dir.path().parent().map(Path::to_owned);
        RunEntry { sweep, model: model.to_owned(), experiment: "base".into(), ..run }
    }

    /// Each row as text, indented.
    fn shown(tree: &RunTree) -> Vec<String> {
        let row = |row: &TreeRow| {
            let text = match &row.item {
                Item::Group(g) => format!("{}{} ({})", if g.folded { '+' } else { '-' }, g.title, g.runs),
                Item::Run(run) => format!("{} [{}]", run.title, run.differs),
            };
            format!("{}{text}", "  ".repeat(row.depth))
        };
        tree.rows().iter().map(row).collect()
    }

    #[test]
    fn runs_are_grouped_and_groups_with_one_child_take_no_level() {
        let entries = vec![
            run("base/tiny/2026-01-31_12-00-59", &["a.b=1", "model=tiny", "c=1"]),
            run("base/tiny/mine", &["a.b=2", "model=tiny", "c=1"]),
            job(1, "tiny", &["c=1", "runtime.batch_size=2"]),
            job(0, "tiny", &["c=1", "runtime.batch_size=1"]),
            run("base/large/2026-01-01_00-00-00-2", &["model=large", "d=3"]),
            run("other/tiny/1", &[]),
            run("other/tiny/2", &[]),
        ];
        let mut tree = RunTree::new(entries, Arrangement::default());
        assert_eq!(
            shown(&tree),
            [
                "-base (5)",
                "  -tiny (4)",
                "    01-31 12:00:59 [b=1]",
                "    mine [b=2]",
                "    +sweep 01-01 12:00:00 (2)",
                "  large / 01-01 00:00:00-2 [d=3]",
                "-other / tiny (2)",
                "  1 []",
                "  2 []",
            ]
        );
        assert_eq!((tree.selected(None), tree.parent_of(2), tree.parent_of(5)), (2, Some(1), Some(0)));
        let sweep = tree.group_at(4).unwrap().key.clone();
        let key = tree.key_at(5).unwrap();
        let arrangement = Arrangement {
            toggled: [sweep, GroupKey::Model("other".into(), "tiny".into())].into(),
            ..Arrangement::default()
        };
        assert!(tree.arrange(&arrangement) && !tree.arrange(&arrangement));
        assert_eq!(
            shown(&tree)[4..],
            [
                "    -sweep 01-01 12:00:00 (2)",
                "      job 1 [batch_size=2]",
                "      job 0 [batch_size=1]",
                "  large / 01-01 00:00:00-2 [d=3]",
                "+other / tiny (2)",
            ]
        );
        assert_eq!(tree.row_of(&key), Some(7));
    }

    #[test]
    fn the_pairs_of_a_comparison_are_one_row_that_unfolds() {
        let pair = |name: &str, model: &str, overrides: &[&str]| {
            let run = run(&format!("compare/2026-01-01_12-00-00/{name}"), overrides);
            let pairs = run.dir.path().parent().map(Path::to_owned);
            RunEntry { pairs, model: model.to_owned(), experiment: "base".into(), ..run }
        };
        let of_pairs = |b: &str| {
            vec![
                run("base/tiny/mine", &[]),
                pair("b-01", b, &["runtime.batch_size=2"]),
                pair("a-01", "tiny", &["runtime.batch_size=1"]),
            ]
        };
        let mut tree = RunTree::new(of_pairs("tiny"), Arrangement::default());
        assert_eq!(shown(&tree), ["-base / tiny (3)", "  mine []", "  +pairs 01-01 12:00:00 (2)"]);
        let toggled = [tree.group_at(2).unwrap().key.clone()].into();
        tree.arrange(&Arrangement { toggled, ..Arrangement::default() });
        assert_eq!(shown(&tree)[3..], ["    b-01 [batch_size=2]", "    a-01 [batch_size=1]"]);
        // Sides with different models belong to neither.
        let tree = RunTree::new(of_pairs("large"), Arrangement::default());
        assert_eq!(shown(&tree), ["-base (3)", "  tiny / mine []", "  +pairs 01-01 12:00:00 (2)"]);
    }

    #[test]
    fn a_sweep_of_models_belongs_to_none_of_them() {
        let entries = vec![job(0, "a", &["model=a"]), job(1, "b", &["model=b"]), run("base/a/1", &[])];
        let arrangement = Arrangement { filter: "JOB".into(), ..Arrangement::default() };
        let mut tree = RunTree::new(entries, arrangement);
        assert_eq!(shown(&tree), Vec::<String>::new());
        tree.arrange(&Arrangement { filter: "Model=".into(), ..Arrangement::default() });
        assert_eq!(
            shown(&tree),
            ["-base / sweep 01-01 12:00:00 (2)", "  job 0 [model=a]", "  job 1 [model=b]"]
        );
    }

    #[test]
    fn a_column_has_one_precision() {
        for (values, wanted) in [
            (&[3.79, 120.0][..], 2),
            (&[12.0, 999.0], 1),
            (&[120.0, 47_000.0], 0),
            (&[0.05, 3.0], 3),
            (&[0.0], 0),
            (&[], 0),
        ] {
            assert_eq!(digits(values.iter().copied()), wanted, "{values:?}");
        }
    }

    #[test]
    fn many_runs_are_arranged() {
        let entries =
            (0..5000).map(|n| run(&format!("e{}/m{}/{n}", n % 7, n % 31), &["a=1", "b=2"])).collect();
        let tree = RunTree::new(entries, Arrangement::default());
        assert_eq!(tree.listed().len(), 5000);
    }
}
