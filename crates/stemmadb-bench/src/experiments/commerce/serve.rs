//! Shoppers are served: their plans come through a bounded channel to the agents, each a thread with its own way into the shop.
//!
//! What is timed is one call of an agent, from before the first thing it asks of the engine until the last answer is there in full. Every
//! answer is kept and compared afterwards with the model of the shop.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use crate::Result;
use crate::engine::shop::{Agent, CartId, Shop};
use crate::workload::shop::{Answer, Model, Operation, Plan, Step, Stock, Visit, same};

/// A shop that is open, with agents who serve.
pub(super) struct Desk<'a> {
    shop: &'a dyn Shop,
    agents: Vec<Box<dyn Agent + Send + 'a>>,
    served: Served,
    /// By number of the plan.
    answers: Vec<Vec<Answer>>,
}

/// What serving came to.
#[derive(Default)]
pub(super) struct Served {
    /// From the first plan of each turn until its last shopper left.
    pub(super) elapsed: Duration,
    /// Nanoseconds of each step.
    pub(super) costs: Vec<(Operation, u64)>,
}

/// What one agent did in a turn.
#[derive(Default)]
struct Done {
    costs: Vec<(Operation, u64)>,
    /// By number of the plan within the turn.
    answers: Vec<(usize, Vec<Answer>)>,
}

impl<'a> Desk<'a> {
    /// A desk with so many agents.
    pub(super) fn open(shop: &'a dyn Shop, agent_count: usize) -> Result<Self> {
        let agents = (0..agent_count).map(|_| shop.agent()).collect::<Result<_>>()?;
        Ok(Desk { shop, agents, served: Served::default(), answers: Vec::new() })
    }

    /// One turn: serves the next plans, by all agents at the same time.
    pub(super) fn serve(&mut self, stock: &Stock, plans: &[Plan]) -> Result<()> {
        let (sender, receiver) = sync_channel(2 * self.agents.len());
        let receiver = Mutex::new(receiver);
        let start = Instant::now();
        let done: Vec<Result<Done>> = std::thread::scope(|scope| {
            let receiver = &receiver;
            let threads: Vec<_> =
                self.agents.iter_mut().map(|agent| scope.spawn(move || work(&mut **agent, stock, receiver))).collect();
            for numbered in plans.iter().enumerate() {
                // Refused only when no agent is left, and then their errors tell why.
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
        self.served.elapsed += start.elapsed();
        let first = self.answers.len();
        self.answers.resize(first + plans.len(), Vec::new());
        for one in done {
            let one = one?;
            self.served.costs.extend(one.costs);
            one.answers.into_iter().for_each(|(number, all)| self.answers[first + number] = all);
        }
        Ok(())
    }

    /// The end, when all plans were served: compares every answer, and what the shop has now.
    pub(super) fn close(self, stock: &Stock, plans: &[Plan]) -> Result<Served> {
        check(self.shop, stock, plans, &self.answers, self.agents.len() == 1)?;
        Ok(self.served)
    }
}

fn work(agent: &mut dyn Agent, stock: &Stock, plans: &Mutex<Receiver<(usize, &Plan)>>) -> Result<Done> {
    let mut done = Done::default();
    loop {
        let next = plans.lock().map_err(|_| "another agent panicked")?.recv();
        let Ok((number, plan)) = next else { return Ok(done) };
        let mut answers = Vec::with_capacity(plan.len());
        let mut cart = None;
        for step in plan {
            let start = Instant::now();
            let answer = take(agent, stock, step, &mut cart)?;
            done.costs.push((step.operation(), start.elapsed().as_nanos() as u64));
            answers.push(answer);
        }
        done.answers.push((number, answers));
    }
}

fn take(agent: &mut dyn Agent, stock: &Stock, step: &Step, cart: &mut Option<CartId>) -> Result<Answer> {
    let no_cart = "a plan makes a cart first";
    match *step {
        Step::FindProduct(id) => Ok(Answer::Product(agent.find_product(&stock.products[id as usize].name)?)),
        Step::LookupProduct(id) => Ok(Answer::Product(agent.look_up_product(id)?)),
        Step::CreateCart => {
            *cart = Some(agent.create_cart()?);
            Ok(Answer::Done)
        }
        Step::AddProduct(id) => {
            agent.add_product(cart.ok_or(no_cart)?, id)?;
            Ok(Answer::Done)
        }
        Step::Checkout { customer_id } => {
            Ok(Answer::Ordered(agent.checkout(cart.take().ok_or(no_cart)?, customer_id)?))
        }
        Step::RateProduct { customer_id, product_id, rating } => {
            agent.rate_product(customer_id, product_id, rating)?;
            Ok(Answer::Done)
        }
    }
}

/// Compares everything with the model: exactly, if shoppers were served one after the other.
fn check(shop: &dyn Shop, stock: &Stock, plans: &[Plan], answers: &[Vec<Answer>], in_turn: bool) -> Result<()> {
    same(&plans.len(), &answers.len())?;
    let opening = Model::new(stock);
    let mut model = opening.clone();
    let expected: Vec<Vec<Answer>> = plans.iter().map(|plan| model.serve(plan)).collect();
    for (expected, answers) in expected.iter().zip(answers) {
        same(&expected.len(), &answers.len())?;
        for (expected, answer) in expected.iter().zip(answers) {
            match in_turn {
                true => same(expected, answer)?,
                false => model.check_between(&opening, expected, answer)?,
            }
        }
    }
    let state = shop.state()?;
    if in_turn { same(&model.state(), &state) } else { model.check_left(&state) }
}

/// Serves plans one after the other, untimed, and after each step looks at what it wrote: the cart, the order, the rating.
pub(super) fn verify(shop: &dyn Shop, stock: &Stock, plans: &[Plan]) -> Result<()> {
    let mut agent = shop.agent()?;
    let mut model = Model::new(stock);
    for plan in plans {
        let (mut visit, mut cart) = (Visit::default(), None);
        for step in plan {
            let cart_before = cart;
            let answer = take(&mut *agent, stock, step, &mut cart)?;
            same(&model.take(step, &mut visit), &answer).map_err(|error| format!("{step:?}: {error}"))?;
            look_after(&mut *agent, &model, &visit, step, cart.or(cart_before))?;
        }
        model.leave(visit);
    }
    same(&model.state(), &shop.state()?)
}

fn look_after(agent: &mut dyn Agent, model: &Model, visit: &Visit, step: &Step, cart: Option<CartId>) -> Result<()> {
    if let Some(cart) = cart {
        let contents = visit.cart.clone().map(|mut contents| {
            contents.sort_unstable();
            contents
        });
        same(&contents, &agent.cart(cart)?).map_err(|error| format!("cart after {step:?}: {error}"))?;
    }
    if let Step::RateProduct { product_id, .. } = *step {
        let expected = model.product(product_id);
        let by_id = agent.look_up_product(product_id)?;
        let by_name = agent.find_product(&expected.name)?;
        let expected = Some(expected);
        same(&expected, &by_id)
            .and_then(|()| same(&expected, &by_name))
            .map_err(|error| format!("{step:?}: {error}"))?;
    }
    Ok(())
}
