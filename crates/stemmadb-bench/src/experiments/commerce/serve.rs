//! Serving shoppers: plans are distributed to agent threads through a bounded channel.
//!
//! One timed step is one call of an agent, from before its first request until its last response is complete. All
//! results are kept and compared with the shop model afterwards.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use crate::Result;
use crate::engine::shop::{Agent, CartId, Shop};
use crate::workload::shop::{Operation, Plan, ShopModel, ShopperVisit, Step, StepResult, Stock, expect_equal};

/// An open shop with its agents.
pub(super) struct ShopSession<'a> {
    shop: &'a dyn Shop,
    agent_count: usize,
    agents: Vec<Box<dyn Agent + Send + 'a>>,
    times: ServeTimes,
    /// Results by plan number.
    results: Vec<Vec<StepResult>>,
}

/// Measured times.
#[derive(Default)]
pub(super) struct ServeTimes {
    /// Sum over all turns, each from its first plan until its last shopper is served.
    pub(super) elapsed: Duration,
    /// Nanoseconds of each step.
    pub(super) costs: Vec<(Operation, u64)>,
}

/// What one agent did in a turn.
#[derive(Default)]
struct TurnResult {
    costs: Vec<(Operation, u64)>,
    /// Results by plan number within the turn.
    results: Vec<(usize, Vec<StepResult>)>,
}

impl<'a> ShopSession<'a> {
    /// Opens `agent_count` agents.
    pub(super) fn open(shop: &'a dyn Shop, agent_count: usize) -> Result<Self> {
        let agents = (0..agent_count).map(|_| shop.agent()).collect::<Result<_>>()?;
        Ok(ShopSession { shop, agent_count, agents, times: ServeTimes::default(), results: Vec::new() })
    }

    /// Serves the next plans, with all agents in parallel.
    pub(super) fn serve(&mut self, stock: &Stock, plans: &[Plan]) -> Result<()> {
        if let Some(turn) = self.shop.serve_elsewhere(self.agent_count, plans)? {
            self.times.elapsed += turn.elapsed;
            self.times.costs.extend(turn.costs);
            self.results.extend(turn.results);
            return Ok(());
        }
        let (sender, receiver) = sync_channel(2 * self.agents.len());
        let receiver = Mutex::new(receiver);
        let start = Instant::now();
        let turn: Vec<Result<TurnResult>> = std::thread::scope(|scope| {
            let receiver = &receiver;
            let threads: Vec<_> = self
                .agents
                .iter_mut()
                .map(|agent| scope.spawn(move || serve_plans(&mut **agent, stock, receiver)))
                .collect();
            for numbered in plans.iter().enumerate() {
                // Fails only if all agents have stopped; their errors are returned below.
                if sender.send(numbered).is_err() {
                    break;
                }
            }
            drop(sender);
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err("an agent panicked".into()))
            };
            threads.into_iter().map(join).collect()
        });
        self.times.elapsed += start.elapsed();
        let first = self.results.len();
        self.results.resize(first + plans.len(), Vec::new());
        for one in turn {
            let one = one?;
            self.times.costs.extend(one.costs);
            one.results.into_iter().for_each(|(number, all)| self.results[first + number] = all);
        }
        Ok(())
    }

    /// Compares every result and the shop's final state with the model.
    pub(super) fn close(self, stock: &Stock, plans: &[Plan]) -> Result<ServeTimes> {
        check(self.shop, stock, plans, &self.results, self.agent_count == 1)?;
        Ok(self.times)
    }
}

fn serve_plans(agent: &mut dyn Agent, stock: &Stock, plans: &Mutex<Receiver<(usize, &Plan)>>) -> Result<TurnResult> {
    let mut turn = TurnResult::default();
    loop {
        let next = plans.lock().map_err(|_| "another agent panicked")?.recv();
        let Ok((number, plan)) = next else { return Ok(turn) };
        let mut results = Vec::with_capacity(plan.len());
        let mut cart = None;
        for step in plan {
            let start = Instant::now();
            let result = run_step(agent, stock, step, &mut cart)?;
            turn.costs.push((step.operation(), start.elapsed().as_nanos() as u64));
            results.push(result);
        }
        turn.results.push((number, results));
    }
}

fn run_step(agent: &mut dyn Agent, stock: &Stock, step: &Step, cart: &mut Option<CartId>) -> Result<StepResult> {
    let no_cart = "a plan makes a cart first";
    match *step {
        Step::FindProduct(id) => Ok(StepResult::Product(agent.find_product(&stock.products[id as usize].name)?)),
        Step::LookupProduct(id) => Ok(StepResult::Product(agent.look_up_product(id)?)),
        Step::CreateCart => {
            *cart = Some(agent.create_cart()?);
            Ok(StepResult::Done)
        }
        Step::AddProduct(id) => {
            agent.add_product(cart.ok_or(no_cart)?, id)?;
            Ok(StepResult::Done)
        }
        Step::Checkout { customer_id } => {
            Ok(StepResult::Ordered(agent.checkout(cart.take().ok_or(no_cart)?, customer_id)?))
        }
        Step::RateProduct { customer_id, product_id, rating } => {
            agent.rate_product(customer_id, product_id, rating)?;
            Ok(StepResult::Done)
        }
    }
}

/// Compares all results and the final state with the model; exactly, if shoppers were served one after another.
fn check(
    shop: &dyn Shop,
    stock: &Stock,
    plans: &[Plan],
    results: &[Vec<StepResult>],
    is_sequential: bool,
) -> Result<()> {
    expect_equal(&plans.len(), &results.len())?;
    let initial = ShopModel::new(stock);
    let mut model = initial.clone();
    let expected: Vec<Vec<StepResult>> = plans.iter().map(|plan| model.serve(plan)).collect();
    for (expected, results) in expected.iter().zip(results) {
        expect_equal(&expected.len(), &results.len())?;
        for (expected, result) in expected.iter().zip(results) {
            match is_sequential {
                true => expect_equal(expected, result)?,
                false => model.check_concurrent_result(&initial, expected, result)?,
            }
        }
    }
    let state = shop.state()?;
    if is_sequential { expect_equal(&model.state(), &state) } else { model.check_final_state(&state) }
}

/// Serves plans one after another, untimed, and verifies each step's effects: the cart, the order, the rating.
pub(super) fn verify(shop: &dyn Shop, stock: &Stock, plans: &[Plan]) -> Result<()> {
    let mut agent = shop.agent()?;
    let mut model = ShopModel::new(stock);
    for plan in plans {
        let (mut visit, mut cart) = (ShopperVisit::default(), None);
        for step in plan {
            let cart_before = cart;
            let result = run_step(&mut *agent, stock, step, &mut cart)?;
            expect_equal(&model.apply_step(step, &mut visit), &result).map_err(|error| format!("{step:?}: {error}"))?;
            verify_effects(&mut *agent, &model, &visit, step, cart.or(cart_before))?;
        }
        model.end_visit(visit);
    }
    expect_equal(&model.state(), &shop.state()?)
}

fn verify_effects(
    agent: &mut dyn Agent,
    model: &ShopModel,
    visit: &ShopperVisit,
    step: &Step,
    cart: Option<CartId>,
) -> Result<()> {
    if let Some(cart) = cart {
        let contents = visit.cart.clone().map(|mut contents| {
            contents.sort_unstable();
            contents
        });
        expect_equal(&contents, &agent.cart(cart)?).map_err(|error| format!("cart after {step:?}: {error}"))?;
    }
    if let Step::RateProduct { product_id, .. } = *step {
        let expected = model.product(product_id);
        let by_id = agent.look_up_product(product_id)?;
        let by_name = agent.find_product(&expected.name)?;
        let expected = Some(expected);
        expect_equal(&expected, &by_id)
            .and_then(|()| expect_equal(&expected, &by_name))
            .map_err(|error| format!("{step:?}: {error}"))?;
    }
    Ok(())
}
