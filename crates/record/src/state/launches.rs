//! The Python lines that launched the kernels of a followed program, and the GPU time of each.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use llmprof_event::{LaunchFrame, LaunchLines, LaunchStack, Stamp};

/// Maximum stacks, and kernels of stacks; what further ones take is only summed.
const MAX_STACKS: usize = 1 << 15;
const MAX_ROWS: usize = 1 << 16;
const MAX_FRAMES: usize = 1 << 17;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Launched {
    pub launches: u64,
    pub ns: u64,
}

impl Launched {
    fn add(&mut self, other: Launched) {
        self.launches += other.launches;
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// A stack of a process; its number is 0 for launches without one.
type Key = (u32, u32);

#[derive(Debug, Clone, Default)]
pub struct Launches {
    /// The frames of each process, by their numbers.
    frames: HashMap<u32, Vec<LaunchFrame>>,
    frame_count: usize,
    stacks: HashMap<Key, LaunchStack>,
    rows: BTreeMap<Key, BTreeMap<String, Launched>>,
    row_count: usize,
    all: Launched,
}

/// The grouping of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchGroup {
    /// The innermost line of the program's own code.
    Line,
    /// Its file.
    Module,
}

/// A line or a file, and the kernels that it launched.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchPlace<'a> {
    /// `None`: launched outside of Python.
    pub place: Option<Cow<'a, str>>,
    pub launched: Launched,
    /// The share in the time of all kernels.
    pub share: f64,
    /// Those with the most time first.
    pub kernels: Vec<(&'a str, Launched)>,
}

/// The text of launches without a Python frame.
pub const OUTSIDE: &str = "(outside of Python)";

impl LaunchPlace<'_> {
    pub fn text(&self) -> &str {
        self.place.as_deref().unwrap_or(OUTSIDE)
    }
}

impl Launches {
    pub fn is_there(&self) -> bool {
        self.all.launches > 0
    }

    /// All kernels that were recorded while launches were.
    pub fn all(&self) -> Launched {
        self.all
    }

    pub(super) fn lines(&mut self, _: Stamp, lines: &LaunchLines) {
        let room = MAX_FRAMES.saturating_sub(self.frame_count).min(lines.frames.len());
        self.frame_count += room;
        self.frames.entry(lines.pid).or_default().extend_from_slice(&lines.frames[..room]);
        for stack in &lines.stacks {
            if self.stacks.len() < MAX_STACKS {
                self.stacks.insert((lines.pid, stack.stack), stack.clone());
            }
        }
        for row in &lines.rows {
            let launched = Launched { launches: row.launches.into(), ns: row.ns };
            self.all.add(launched);
            let kernels = self.rows.entry((lines.pid, row.stack)).or_default();
            if let Some(known) = kernels.get_mut(&row.kernel) {
                known.add(launched);
            } else if self.row_count < MAX_ROWS {
                self.row_count += 1;
                kernels.insert(row.kernel.clone(), launched);
            }
        }
    }

    fn frame(&self, pid: u32, number: u32) -> Option<&LaunchFrame> {
        self.frames.get(&pid)?.get(number as usize)
    }

    /// The innermost frame of the program's own code, or the innermost one.
    fn own(&self, key: Key) -> Option<&LaunchFrame> {
        let stack = self.stacks.get(&key)?;
        let own = stack.own.and_then(|own| stack.frames.get(own as usize));
        own.or_else(|| stack.frames.first()).and_then(|number| self.frame(key.0, *number))
    }

    /// By their time.
    pub fn places(&self, group: LaunchGroup) -> Vec<LaunchPlace<'_>> {
        let mut places: HashMap<Option<Cow<'_, str>>, HashMap<&str, Launched>> = HashMap::new();
        for (key, kernels) in &self.rows {
            let place = self.own(*key).map(|frame| match group {
                LaunchGroup::Line => Cow::Owned(frame.to_string()),
                LaunchGroup::Module => Cow::Borrowed(frame.file.as_str()),
            });
            let known = places.entry(place).or_default();
            for (name, launched) in kernels {
                known.entry(name).or_default().add(*launched);
            }
        }
        let mut places: Vec<LaunchPlace<'_>> = places
            .into_iter()
            .map(|(place, kernels)| {
                let mut launched = Launched::default();
                kernels.values().for_each(|kernel| launched.add(*kernel));
                let mut kernels: Vec<_> = kernels.into_iter().collect();
                kernels.sort_by_key(|(name, launched)| (std::cmp::Reverse(launched.ns), *name));
                let share = launched.ns as f64 / self.all.ns.max(1) as f64;
                LaunchPlace { place, launched, share, kernels }
            })
            .collect();
        places.sort_by(|a, b| b.launched.ns.cmp(&a.launched.ns).then_with(|| a.place.cmp(&b.place)));
        places
    }

    /// The line that most of the time of these kernels was launched from, and its share of that time.
    pub fn line_of(&self, is_wanted: impl Fn(&str) -> bool) -> Option<(String, f64)> {
        let mut lines: BTreeMap<Option<&LaunchFrame>, u64> = BTreeMap::new();
        for (key, kernels) in &self.rows {
            let wanted = kernels.iter().filter(|(name, _)| is_wanted(name));
            let ns: u64 = wanted.map(|(_, launched)| launched.ns).sum();
            if ns > 0 {
                *lines.entry(self.own(*key)).or_default() += ns;
            }
        }
        let all: u64 = lines.values().sum();
        let (frame, ns) = lines.into_iter().max_by_key(|(_, ns)| *ns)?;
        let text = frame.map_or_else(|| OUTSIDE.to_owned(), ToString::to_string);
        Some((text, ns as f64 / all as f64))
    }

    /// Each stack with its kernel, outermost frame first, and the kernel's nanoseconds: what flame graphs are drawn from.
    pub fn stacks(&self) -> Vec<(Vec<Cow<'_, str>>, u64)> {
        let mut all: BTreeMap<Vec<Cow<'_, str>>, u64> = BTreeMap::new();
        for (key, kernels) in &self.rows {
            let numbers = self.stacks.get(key).map(|stack| stack.frames.as_slice()).unwrap_or_default();
            let frames = numbers.iter().rev().filter_map(|number| self.frame(key.0, *number));
            let mut path: Vec<Cow<'_, str>> = frames.map(|frame| Cow::Owned(frame.to_string())).collect();
            if path.is_empty() {
                path.push(Cow::Borrowed(OUTSIDE));
            }
            for (name, launched) in kernels {
                let path = path.iter().cloned().chain([Cow::Borrowed(name.as_str())]).collect();
                *all.entry(path).or_default() += launched.ns;
            }
        }
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use llmprof_event::LaunchRow;

    use super::*;

    fn frame(file: &str, line: u32, function: &str) -> LaunchFrame {
        LaunchFrame { file: file.to_owned(), dir: "/app/".to_owned(), line, function: function.to_owned() }
    }

    fn row(stack: u32, kernel: &str, launches: u32, ns: u64) -> LaunchRow {
        LaunchRow { stack, kernel: kernel.to_owned(), launches, ns }
    }

    fn launches() -> Launches {
        let frames = vec![
            frame("torch/f.py", 9, "linear"),
            frame("model.py", 5, "attend"),
            frame("run.py", 2, "main"),
            frame("model.py", 8, "norm"),
        ];
        let stacks = vec![
            LaunchStack { stack: 1, frames: vec![0, 1, 2], own: Some(1) },
            LaunchStack { stack: 2, frames: vec![3, 2], own: Some(0) },
        ];
        let mut launches = Launches::default();
        let rows = vec![row(1, "gemm", 2, 600), row(2, "gemm", 1, 100), row(2, "norm", 4, 200)];
        launches.lines(Stamp(0), &LaunchLines { pid: 7, frames, stacks, rows });
        launches.lines(
            Stamp(0),
            &LaunchLines {
                pid: 7,
                frames: Vec::new(),
                stacks: Vec::new(),
                rows: vec![row(0, "copy", 1, 100)],
            },
        );
        launches
    }

    #[test]
    fn kernels_are_grouped_by_the_line_and_by_the_file_that_launched_them() {
        let launches = launches();
        let texts = |group| {
            let places = launches.places(group);
            let text = |place: &LaunchPlace<'_>| {
                format!("{} {:.1} {}", place.text(), place.share, place.launched.launches)
            };
            places.iter().map(text).collect::<Vec<_>>()
        };
        let outside = "(outside of Python) 0.1 1";
        assert_eq!(
            texts(LaunchGroup::Line),
            ["model.py:5 attend 0.6 2", "model.py:8 norm 0.3 5", outside],
            "the program's own line, not the library's"
        );
        assert_eq!(texts(LaunchGroup::Module), ["model.py 0.9 7", outside]);
        assert_eq!(launches.places(LaunchGroup::Line)[1].kernels[0].0, "norm", "by time");
        assert_eq!(launches.all().ns, 1000);
    }

    #[test]
    fn a_kernel_has_the_line_of_most_of_its_time() {
        let launches = launches();
        let (text, share) = launches.line_of(|name| name == "gemm").unwrap();
        assert_eq!((text.as_str(), (share * 7.0).round()), ("model.py:5 attend", 6.0));
        assert_eq!(launches.line_of(|name| name == "copy").unwrap(), (OUTSIDE.to_owned(), 1.0));
        assert_eq!(launches.line_of(|_| false), None);
    }

    #[test]
    fn stacks_are_whole_and_sum_to_all() {
        let launches = launches();
        let stacks = launches.stacks();
        let texts: Vec<String> = stacks.iter().map(|(path, ns)| format!("{} {ns}", path.join(";"))).collect();
        assert!(texts.contains(&"run.py:2 main;model.py:5 attend;torch/f.py:9 linear;gemm 600".to_owned()));
        assert_eq!(stacks.iter().map(|(_, ns)| ns).sum::<u64>(), launches.all().ns);
    }

    #[test]
    fn rows_and_stacks_are_bounded() {
        let mut launches = Launches::default();
        let rows = (0..MAX_ROWS as u32 + 9).map(|n| row(1, &format!("k{n}"), 1, 1)).collect();
        let stacks = 0..MAX_STACKS as u32 + 9;
        let stacks = stacks.map(|stack| LaunchStack { stack, frames: Vec::new(), own: None }).collect();
        let frames = (0..MAX_FRAMES as u32 + 9).map(|line| frame("a.py", line, "f")).collect();
        launches.lines(Stamp(0), &LaunchLines { pid: 7, frames, stacks, rows });
        assert_eq!(launches.frame_count, MAX_FRAMES);
        assert_eq!((launches.stacks.len(), launches.row_count), (MAX_STACKS, MAX_ROWS));
        assert_eq!(launches.all().launches, MAX_ROWS as u64 + 9, "all are summed");
    }
}
