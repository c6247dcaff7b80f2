//! The shop in BonsaiDb, embedded or by WebSocket: a program of its own (`bonsaidb/` in this crate), because BonsaiDb's
//! dependencies don't fit into this workspace.
//!
//! The program serves whole turns of shoppers and measures each step itself; what it answers is checked here like
//! everybody's. Single operations go through it only for verification, untimed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Agent, CartId, ServedTurn, Shop};
use crate::Result;
use crate::workload::shop::{Order, Plan, ProductWithRating, ShopState, StepResult, Stock};

/// Describes the configuration, for the report.
pub(super) const SETTINGS: &str = "BonsaiDb: as it opens; its server in a process of its own; a blocking client for \
    each agent; checkout in one transaction; each review updates the view of ratings, which reads don't wait for";

/// Name and version, for the report.
pub(crate) const VERSION: &str = "BonsaiDb 0.5.0";

/// The built program.
#[derive(Clone, Debug)]
pub(crate) struct BonsaiProgram {
    path: PathBuf,
}

/// How agents reach the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BonsaiAccess {
    Embedded,
    WebSocket,
}

impl BonsaiProgram {
    /// Builds the program beside this one, with optimizations.
    pub(crate) fn build() -> Result<Self> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("bonsaidb");
        let here = std::env::current_exe()?;
        // Tests run one directory deeper than programs.
        let target = here.ancestors().find(|path| path.join("CACHEDIR.TAG").exists());
        let target = target.ok_or("this program is not in a target directory")?.join("bonsaidb");
        eprintln!("building BonsaiDb in {}; the first time takes some minutes", target.display());
        let built = Command::new("cargo")
            .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
            .arg(sources.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .status()
            .map_err(|error| format!("BonsaiDb needs cargo: {error}"))?;
        match built.success() {
            true => Ok(BonsaiProgram { path: target.join("release/stemmadb-bench-bonsaidb") }),
            false => Err(format!("BonsaiDb's program can't be built: {built}").into()),
        }
    }
}

#[derive(Serialize)]
enum Request<'a> {
    Load(&'a Stock),
    Serve { agent_count: usize, plans: &'a [Plan] },
    Call(Call<'a>),
    State,
}

/// One operation of an agent.
#[derive(Serialize)]
enum Call<'a> {
    FindProduct(&'a str),
    LookUpProduct(u32),
    CreateCart,
    AddProduct { cart: u64, product_id: u32 },
    Checkout { cart: u64, customer_id: u32 },
    RateProduct { customer_id: u32, product_id: u32, rating: u8 },
    Cart(u64),
}

#[derive(Deserialize)]
enum Reply {
    /// Nanoseconds.
    Loaded(u64),
    Served {
        elapsed: u64,
        /// For each plan, each step's nanoseconds and result.
        visits: Vec<Vec<(u64, StepResult)>>,
    },
    Called(Answer),
    State(State),
    Failed(String),
}

#[derive(Deserialize)]
enum Answer {
    Product(Option<ProductWithRating>),
    CartId(u64),
    Done,
    Products(Vec<u32>),
    Cart(Option<Vec<u32>>),
}

#[derive(Deserialize)]
struct State {
    orders: Vec<Order>,
    carts: Vec<Order>,
    /// Product, customer and rating.
    ratings: Vec<(u32, u32, u8)>,
}

/// A shop kept by the program.
pub(crate) struct BonsaiShop {
    process: Mutex<Process>,
}

/// The running program, which stops when its stdin is closed.
struct Process {
    child: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &BonsaiProgram, access: BonsaiAccess, path: &Path) -> Result<Self> {
        let mode = if access == BonsaiAccess::Embedded { "embedded" } else { "websocket" };
        let mut command = Command::new(&program.path);
        command.arg(mode).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot run {}: {error}", program.path.display()))?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().ok_or("the program has no output")?);
        Ok(Process { child, requests, replies })
    }

    fn ask(&mut self, request: &Request<'_>) -> Result<Reply> {
        let requests = self.requests.as_mut().ok_or("the program was stopped")?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        requests.write_all(&line)?;
        requests.flush()?;
        let mut reply = String::new();
        self.replies.read_line(&mut reply)?;
        match serde_json::from_str(&reply) {
            Ok(Reply::Failed(reason)) => Err(reason.into()),
            Ok(reply) => Ok(reply),
            Err(error) => Err(format!("not a reply: {reply:?}: {error}").into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.requests.take());
        _ = self.child.wait();
    }
}

fn unexpected<T>() -> Result<T> {
    Err("a reply to another request".into())
}

impl BonsaiShop {
    /// Creates a shop in the directory `path` and loads the stock; returns the load's nanoseconds too.
    pub(crate) fn open(
        program: &BonsaiProgram,
        access: BonsaiAccess,
        path: &Path,
        stock: &Stock,
    ) -> Result<(Self, f64)> {
        let mut process = Process::start(program, access, path)?;
        match process.ask(&Request::Load(stock))? {
            Reply::Loaded(nanoseconds) => Ok((BonsaiShop { process: Mutex::new(process) }, nanoseconds as f64)),
            _ => unexpected(),
        }
    }

    fn ask(&self, request: &Request<'_>) -> Result<Reply> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).ask(request)
    }

    fn call(&self, call: Call<'_>) -> Result<Answer> {
        match self.ask(&Request::Call(call))? {
            Reply::Called(answer) => Ok(answer),
            _ => unexpected(),
        }
    }
}

impl Shop for BonsaiShop {
    fn agent(&self) -> Result<Box<dyn Agent + Send + '_>> {
        Ok(Box::new(BonsaiAgent { shop: self }))
    }

    fn serve_elsewhere(&self, agent_count: usize, plans: &[Plan]) -> Result<Option<ServedTurn>> {
        let Reply::Served { elapsed, visits } = self.ask(&Request::Serve { agent_count, plans })? else {
            return unexpected();
        };
        if !visits.iter().map(Vec::len).eq(plans.iter().map(Vec::len)) {
            return Err("some steps were not served".into());
        }
        let mut turn = ServedTurn { elapsed: Duration::from_nanos(elapsed), costs: Vec::new(), results: Vec::new() };
        for (plan, visit) in plans.iter().zip(visits) {
            let (costs, results): (Vec<u64>, Vec<StepResult>) = visit.into_iter().unzip();
            turn.costs.extend(plan.iter().map(|step| step.operation()).zip(costs));
            turn.results.push(results);
        }
        Ok(Some(turn))
    }

    fn state(&self) -> Result<ShopState> {
        let Reply::State(State { orders, carts, ratings }) = self.ask(&Request::State)? else { return unexpected() };
        let ratings = ratings.into_iter().map(|(product, customer, rating)| ((product, customer), rating)).collect();
        Ok(ShopState { orders, carts, ratings }.normalized())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// One operation after another, through the program.
struct BonsaiAgent<'a> {
    shop: &'a BonsaiShop,
}

fn number(cart: CartId) -> Result<u64> {
    Ok(u64::try_from(cart.0)?)
}

impl Agent for BonsaiAgent<'_> {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductWithRating>> {
        match self.shop.call(Call::FindProduct(name))? {
            Answer::Product(product) => Ok(product),
            _ => unexpected(),
        }
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductWithRating>> {
        match self.shop.call(Call::LookUpProduct(id))? {
            Answer::Product(product) => Ok(product),
            _ => unexpected(),
        }
    }

    fn create_cart(&mut self) -> Result<CartId> {
        match self.shop.call(Call::CreateCart)? {
            Answer::CartId(id) => Ok(CartId(u128::from(id))),
            _ => unexpected(),
        }
    }

    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()> {
        match self.shop.call(Call::AddProduct { cart: number(cart)?, product_id })? {
            Answer::Done => Ok(()),
            _ => unexpected(),
        }
    }

    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>> {
        match self.shop.call(Call::Checkout { cart: number(cart)?, customer_id })? {
            Answer::Products(products) => Ok(products),
            _ => unexpected(),
        }
    }

    fn rate_product(&mut self, customer_id: u32, product_id: u32, rating: u8) -> Result<()> {
        match self.shop.call(Call::RateProduct { customer_id, product_id, rating })? {
            Answer::Done => Ok(()),
            _ => unexpected(),
        }
    }

    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>> {
        match self.shop.call(Call::Cart(number(cart)?))? {
            Answer::Cart(products) => Ok(products),
            _ => unexpected(),
        }
    }
}
