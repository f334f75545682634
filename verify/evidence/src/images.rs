//! The images that a crash may leave of a recorded device: which there are, which to try, how to build them.
//!
//! A crash *at* `k` comes after the first `k` entries of the trace. What a flush before it covers is there. Of the other writes
//! each may be there, be lost, or be torn at a sector; a write that was under way may be there *early*.
use crate::Fail;
use crate::record::OWN;
use crate::trace::{Kind, Trace};
use ccfs_disks::MemoryDevice;
use ccfs_testkit::Rng;
use std::collections::HashSet;
use std::fmt;

/// One image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Entries before the crash.
    pub at: usize,
    /// Of these the writes that are lost, in order.
    pub lost: Vec<usize>,
    /// A write of which only the first sectors are there.
    pub torn: Option<(usize, u64)>,
    /// A write that had not ended but is there.
    pub early: Option<usize>,
}

impl Spec {
    pub fn in_order(at: usize) -> Spec {
        Spec {
            at,
            lost: Vec::new(),
            torn: None,
            early: None,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Spec { torn: Some(_), .. } => "torn",
            Spec {
                early: None, lost, ..
            } if lost.is_empty() => "in order",
            _ => "reordered",
        }
    }
}

/// `AT[-LOST,...][~TORN:SECTORS][+EARLY]`, where a run of lost writes is `FIRST..LAST`.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &number in &self.lost {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => runs.push((number, number)),
            }
        }
        for (index, (first, last)) in runs.iter().enumerate() {
            f.write_str(if index == 0 { "-" } else { "," })?;
            if first == last {
                write!(f, "{first}")?;
            } else {
                write!(f, "{first}..{last}")?;
            }
        }
        if let Some((number, sectors)) = self.torn {
            write!(f, "~{number}:{sectors}")?;
        }
        self.early.map_or(Ok(()), |number| write!(f, "+{number}"))
    }
}

impl std::str::FromStr for Spec {
    type Err = String;
    fn from_str(text: &str) -> Result<Spec, String> {
        let bad = || {
            format!(
                "`{text}` is no image; one is AT[-LOST,...][~TORN:SECTORS][+EARLY], as explore prints it"
            )
        };
        let number = |t: &str| t.parse::<usize>().map_err(|_| bad());
        let (rest, early) = match text.split_once('+') {
            Some((rest, early)) => (rest, Some(number(early)?)),
            None => (text, None),
        };
        let (rest, torn) = match rest.split_once('~') {
            Some((rest, torn)) => {
                let (at, sectors) = torn.split_once(':').ok_or_else(bad)?;
                (rest, Some((number(at)?, number(sectors)? as u64)))
            }
            None => (rest, None),
        };
        let (at, list) = rest.split_once('-').unwrap_or((rest, ""));
        let mut lost = Vec::new();
        for part in list.split(',').filter(|p| !p.is_empty()) {
            let (first, last) = part.split_once("..").unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if last.saturating_sub(first) > 10_000_000 {
                return Err(bad());
            }
            lost.extend(first..=last);
        }
        lost.sort_unstable();
        Ok(Spec {
            at: number(at)?,
            lost,
            torn,
            early,
        })
    }
}

/// A trace, with what its flushes cover.
pub struct History {
    pub trace: Trace,
    /// First entry that counts: before it the file system was made and set up.
    pub first: usize,
    /// `durable[k]`: entries below this number are durable in a crash at `k`.
    durable: Vec<usize>,
    /// Numbers of the user's marks.
    marks: Vec<usize>,
    pub fs: Option<String>,
    /// Of the device, bytes.
    pub size: u64,
    /// The time of day at the trace's time 0, nanoseconds since 1970, where the recorder told it.
    clock_ns: Option<u64>,
}

impl History {
    pub fn new(trace: Trace) -> Result<History, Fail> {
        let (mut first, mut fs, mut size, mut marks) = (0, None, None, Vec::new());
        let mut clock_ns = None;
        for (number, entry) in trace.entries.iter().enumerate() {
            let Kind::Mark(text) = &entry.kind else {
                continue;
            };
            let Some(own) = text.strip_prefix(OWN) else {
                marks.push(number);
                continue;
            };
            if own == "start" {
                first = number + 1;
            }
            for word in own.split(' ') {
                match word.split_once('=') {
                    Some(("fs", name)) => fs = Some(name.to_string()),
                    Some(("size", bytes)) => size = bytes.parse().ok(),
                    Some(("clock", ns)) => {
                        let ns = ns.parse::<u64>().ok();
                        clock_ns = ns.and_then(|ns| ns.checked_sub(entry.time_ns));
                    }
                    _ => {}
                }
            }
        }
        let needed = trace
            .entries
            .iter()
            .map(|e| e.offset + e.len)
            .max()
            .unwrap_or(0);
        let mut durable = Vec::with_capacity(trace.entries.len() + 1);
        let mut floor = first;
        for entry in &trace.entries {
            durable.push(floor);
            if entry.kind == Kind::Flush {
                floor = floor.max(entry.seen as usize);
            }
        }
        durable.push(floor);
        marks.retain(|m| *m >= first);
        Ok(History {
            trace,
            first,
            durable,
            marks,
            fs,
            size: size.unwrap_or(needed).max(needed),
            clock_ns,
        })
    }

    pub fn end(&self) -> usize {
        self.trace.entries.len()
    }

    /// When a crash at `at` happens: the time of the entry before it, seconds from the start of what counts.
    pub fn time_s(&self, at: usize) -> f64 {
        let time = |n: usize| self.trace.entries.get(n).map_or(0, |e| e.time_ns);
        let begin = time(self.first);
        time(at.saturating_sub(1)).saturating_sub(begin) as f64 / 1e9
    }

    /// Where a time of day (nanoseconds since 1970) lies: seconds from the start of what counts, negative before it. `None`: the trace has no clock.
    pub fn clock_s(&self, ns: u64) -> Option<f64> {
        let begin = self.trace.entries.get(self.first).map_or(0, |e| e.time_ns);
        let zero = self.clock_ns?.checked_add(begin)?;
        Some((i128::from(ns) - i128::from(zero)) as f64 / 1e9)
    }

    /// The entry whose end made a write durable: itself, or a flush; `None`: nothing in the trace did.
    pub fn durable_by(&self, number: usize) -> Option<usize> {
        if self.trace.entries[number].kind == (Kind::Write { fua: true }) {
            return Some(number);
        }
        let at = self.durable.partition_point(|floor| *floor <= number);
        (at <= self.end()).then(|| at.saturating_sub(1))
    }

    /// `in order`, `lost` (the newest writes), `reordered` (older ones, with newer ones there) or `torn`.
    pub fn kind(&self, spec: &Spec) -> &'static str {
        let Some(first) = spec.lost.first() else {
            return spec.kind();
        };
        let newer = self.pending(spec.at).filter(|n| n > first);
        let all = newer
            .into_iter()
            .all(|n| spec.lost.binary_search(&n).is_ok());
        match all && spec.torn.is_none() && spec.early.is_none() {
            true => "lost",
            false => spec.kind(),
        }
    }

    /// Texts of the user's marks before `at`.
    pub fn marks(&self, at: usize) -> Vec<&str> {
        let before = self.marks.iter().take_while(|m| **m < at);
        before
            .filter_map(|m| match &self.trace.entries[*m].kind {
                Kind::Mark(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    /// From when on a crash can leave this image, with the same marks reached: after the last write that it has, or the last mark.
    pub fn possible_from(&self, spec: &Spec) -> usize {
        let there = self.pending(spec.at).filter(|n| !spec.lost.contains(n));
        let last = there.max().map_or(self.durable[spec.at], |n| n + 1);
        let mark = self.marks.iter().rev().find(|m| **m < spec.at);
        let begin = last.max(mark.map_or(self.first, |m| m + 1));
        if spec.early.is_some() {
            spec.at
        } else {
            begin.min(spec.at)
        }
    }

    /// Until when a crash can leave this image: the number of entries at which a flush covers what it lost or tore, or the end.
    pub fn possible_until(&self, spec: &Spec) -> usize {
        let torn = spec.torn.iter().map(|t| t.0);
        let Some(first) = spec.lost.iter().copied().chain(torn).min() else {
            return spec.at;
        };
        (spec.at..=self.end())
            .find(|k| self.durable[*k] > first)
            .unwrap_or(self.end())
    }

    /// Writes that a crash at `at` may lose.
    pub fn pending(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        (self.durable[at]..at).filter(|n| {
            let entry = &self.trace.entries[*n];
            entry.is_change() && entry.kind != (Kind::Write { fua: true })
        })
    }

    /// The crashes just before a flush ended, and the one at the end: what they may lose includes what any crash may.
    fn epoch_ends(&self) -> Vec<usize> {
        let is_end = |k: &usize| *k == self.end() || self.trace.entries[*k].kind == Kind::Flush;
        (self.first..=self.end()).filter(is_end).collect()
    }

    /// Whether the image is one that a crash can leave.
    pub fn check(&self, spec: &Spec) -> Result<(), Fail> {
        let impossible = |why: String| Err(Fail::new(format!("image {spec}: {why}")));
        if spec.at > self.end() || spec.at < self.first {
            return impossible(format!(
                "crashes are between {} and {}",
                self.first,
                self.end()
            ));
        }
        let torn = spec.torn.map(|(number, _)| number);
        for number in spec.lost.iter().copied().chain(torn) {
            if number < self.durable[spec.at] || number >= spec.at {
                return impossible(format!(
                    "entry {number} cannot be lost, only {}..{}",
                    self.durable[spec.at], spec.at
                ));
            }
        }
        match spec.early {
            Some(n)
                if n < spec.at
                    || n >= self.end()
                    || self.trace.entries[n].seen as usize > spec.at =>
            {
                impossible(format!("entry {n} was not under way"))
            }
            _ => Ok(()),
        }
    }

    /// How many entries from the beginning are there without a gap, and whether entries from there on are.
    fn split(&self, spec: &Spec) -> (usize, Vec<(usize, Option<u64>)>) {
        let lost = |n: usize| spec.lost.binary_search(&n).is_ok();
        let torn = |n: usize| spec.torn.filter(|(t, _)| *t == n).map(|(_, s)| s);
        let mut whole = spec.at;
        if let Some(&gap) = spec.lost.first() {
            whole = whole.min(gap);
        }
        if let Some((number, _)) = spec.torn {
            whole = whole.min(number);
        }
        let mut rest: Vec<_> = (whole..spec.at)
            .filter(|n| self.trace.entries[*n].is_change() && !lost(*n))
            .map(|n| (n, torn(n)))
            .collect();
        rest.extend(spec.early.map(|n| (n, None)));
        if rest.is_empty() {
            // The same image whichever entries without effect come before the crash.
            while whole > self.first && !self.trace.entries[whole - 1].is_change() {
                whole -= 1;
            }
        }
        (whole, rest)
    }
}

/// Builds images one after the other; cheap when each deviates later than the one before it.
pub struct Builder<'a> {
    history: &'a History,
    base: MemoryDevice,
    /// Entries that the base has.
    done: usize,
}

impl<'a> Builder<'a> {
    pub fn new(history: &'a History) -> Self {
        Builder {
            history,
            base: MemoryDevice::new(history.size),
            done: 0,
        }
    }

    pub fn build(&mut self, spec: &Spec) -> Result<MemoryDevice, Fail> {
        let (whole, rest) = self.history.split(spec);
        if whole < self.done {
            *self = Builder::new(self.history);
        }
        let trace = &self.history.trace;
        for number in self.done..whole {
            trace.apply(number, None, &self.base)?;
        }
        self.done = whole;
        let image = self.base.snapshot();
        for (number, sectors) in rest {
            trace.apply(number, sectors, &image)?;
        }
        Ok(image)
    }
}

/// Which images to try.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// `None`: all in order; with `reorder` also all single ones lost, kept and torn, and random subsets.
    pub images: Option<usize>,
    /// Also images that are out of order, or torn.
    pub reorder: bool,
    pub seed: u64,
}

#[derive(Clone, Copy)]
enum Recipe {
    Missing(usize),
    Only(usize),
    Torn(usize),
    Early(usize),
    /// Keeps each write with so many chances of 16.
    Random(u64),
}

/// Chooses images, in the order in which they are cheap to build.
pub fn choose(history: &History, choice: Choice) -> Vec<Spec> {
    let mut rng = Rng::new(choice.seed);
    let mut points: Vec<usize> = (history.first..=history.end())
        .filter(|k| {
            *k == history.first
                || history.trace.entries[k - 1].is_change()
                || is_mark(history, k - 1)
        })
        .collect();
    let share = choice
        .images
        .map(|n| if choice.reorder { n / 2 } else { n }.max(1));
    if let Some(share) = share
        && points.len() > share
    {
        let last = points.len() - 1;
        let steps = share.max(2) - 1;
        points = (0..=steps).map(|i| points[i * last / steps]).collect();
    }
    let mut specs: Vec<Spec> = points.into_iter().map(Spec::in_order).collect();
    // One of those that have the same content and the same marks.
    let mut seen = HashSet::new();
    let mut is_new = |spec: &Spec| seen.insert((history.split(spec), history.marks(spec.at).len()));
    specs.retain(&mut is_new);
    if choice.reorder {
        let room = choice.images.map(|n| n.saturating_sub(specs.len()));
        specs.extend(out_of_order(history, room, &mut rng, &mut is_new));
    }
    specs.sort_by_cached_key(|spec| (history.split(spec).0, spec.at));
    specs
}

fn is_mark(history: &History, number: usize) -> bool {
    history.marks.binary_search(&number).is_ok()
}

/// At most `room` images that are new, spread over the times between flushes.
fn out_of_order(
    history: &History,
    room: Option<usize>,
    rng: &mut Rng,
    is_new: &mut impl FnMut(&Spec) -> bool,
) -> Vec<Spec> {
    let mut families: Vec<(usize, Vec<Recipe>)> = Vec::new();
    for at in history.epoch_ends() {
        let mut recipes = Vec::new();
        let mut pending = 0;
        for number in history.pending(at) {
            pending += 1;
            recipes.extend([Recipe::Missing(number), Recipe::Only(number)]);
            if history.trace.entries[number].len > ccfs_device::SECTOR {
                recipes.push(Recipe::Torn(number));
            }
        }
        if pending > 2 {
            let chances = [8, 8, 8, 14, 14, 4].iter().map(|c| Recipe::Random(*c));
            recipes.extend(chances.cycle().take(6 + pending / 8));
        }
        let under_way = (at..history.end().min(at + 256)).filter(|n| {
            let entry = &history.trace.entries[*n];
            entry.is_change() && entry.seen as usize <= at
        });
        recipes.extend(under_way.map(Recipe::Early));
        rng.shuffle(&mut recipes);
        if !recipes.is_empty() {
            families.push((at, recipes));
        }
    }
    rng.shuffle(&mut families);
    let mut specs = Vec::new();
    // One of each family in turn, so that a long time without a flush does not take all.
    while families.iter().any(|(_, recipes)| !recipes.is_empty()) {
        for (at, recipes) in &mut families {
            if room.is_some_and(|room| specs.len() >= room) {
                return specs;
            }
            let Some(recipe) = recipes.pop() else {
                continue;
            };
            let spec = cook(history, *at, recipe, rng);
            if is_new(&spec) {
                specs.push(spec);
            }
        }
    }
    // Room is left: more random subsets, as long as there are new ones.
    let room = room.unwrap_or(0);
    for _ in 0..room.saturating_mul(4) {
        if specs.len() >= room || families.is_empty() {
            break;
        }
        let at = families[rng.below(families.len() as u64) as usize].0;
        let chance = 2 + rng.below(13);
        let spec = cook(history, at, Recipe::Random(chance), rng);
        if is_new(&spec) {
            specs.push(spec);
        }
    }
    specs
}

fn cook(history: &History, at: usize, recipe: Recipe, rng: &mut Rng) -> Spec {
    let mut spec = Spec::in_order(at);
    match recipe {
        Recipe::Missing(number) => spec.lost.push(number),
        Recipe::Only(number) => spec
            .lost
            .extend(history.pending(at).filter(|n| *n != number)),
        Recipe::Torn(number) => {
            let sectors = history.trace.entries[number].len / ccfs_device::SECTOR;
            spec = Spec::in_order(number + 1);
            spec.torn = Some((number, 1 + rng.below(sectors - 1)));
        }
        Recipe::Early(number) => spec.early = Some(number),
        Recipe::Random(chance) => {
            let lost: Vec<usize> = history
                .pending(at)
                .filter(|_| rng.below(16) >= chance)
                .collect();
            spec.lost = lost;
        }
    }
    spec
}
