//! A shop with its agents: threads with their own connections, which take shoppers' plans one after another.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bonsaidb::core::connection::Connection;

use crate::connect::Connect;
use crate::messages::{Answer, Call, Reply, Request, Step, StepResult};
use crate::schema::Review;
use crate::{Result, operations};

/// A shop and its connections.
pub(crate) struct Shop<C: Connect> {
    connect: C,
    /// Answers everything that is not timed.
    connection: C::Connection,
    agents: Vec<C::Connection>,
    /// Names by product id.
    product_names: Vec<String>,
}

/// Each step's nanoseconds and result.
type Visit = Vec<(u64, StepResult)>;

impl<C: Connect> Shop<C> {
    /// Connects to an empty shop.
    pub(crate) fn new(connect: C) -> Result<Self> {
        let connection = connect.connect()?;
        Ok(Shop { connect, connection, agents: Vec::new(), product_names: Vec::new() })
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, request: Request) -> Result<Reply> {
        match request {
            Request::Load(stock) => {
                let start = Instant::now();
                operations::load(&self.connection, &stock)?;
                let elapsed = start.elapsed().as_nanos() as u64;
                operations::update_ratings(&self.connection)?;
                self.product_names = stock.products.into_iter().map(|product| product.name).collect();
                Ok(Reply::Loaded(elapsed))
            }
            Request::Serve { agent_count, plans } => self.serve(agent_count, &plans),
            Request::Call(call) => Ok(Reply::Called(answer_call(&self.connection, call)?)),
            Request::State => Ok(Reply::State(operations::state(&self.connection)?)),
        }
    }

    /// Serves shoppers with all agents in parallel.
    fn serve(&mut self, agent_count: usize, plans: &[Vec<Step>]) -> Result<Reply> {
        while self.agents.len() < agent_count {
            let agent = self.connect.connect()?;
            // The first request connects.
            operations::cart(&agent, 0)?;
            self.agents.push(agent);
        }
        let next = AtomicUsize::new(0);
        let visits: Vec<Mutex<Visit>> = plans.iter().map(|_| Mutex::new(Visit::new())).collect();
        let names = &self.product_names;
        let start = Instant::now();
        std::thread::scope(|scope| {
            let serve = |agent: &C::Connection| -> Result<()> {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(plan) = plans.get(number) else { return Ok(()) };
                    *visits[number].lock().map_err(|_| "another agent panicked")? = visit(agent, names, plan)?;
                }
            };
            let threads: Vec<_> =
                self.agents[..agent_count].iter_mut().map(|agent| scope.spawn(move || serve(agent))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "an agent panicked")?)
        })?;
        let elapsed = start.elapsed().as_nanos() as u64;
        let visits = visits.into_iter().map(|visit| visit.into_inner().map_err(|_| "an agent panicked".into()));
        Ok(Reply::Served { elapsed, visits: visits.collect::<Result<_>>()? })
    }
}

/// Serves one shopper.
fn visit<C: Connection>(database: &C, names: &[String], plan: &[Step]) -> Result<Visit> {
    let mut visit = Visit::with_capacity(plan.len());
    let mut cart = None;
    for step in plan {
        let start = Instant::now();
        let result = run_step(database, names, *step, &mut cart)?;
        visit.push((start.elapsed().as_nanos() as u64, result));
    }
    Ok(visit)
}

fn run_step<C: Connection>(database: &C, names: &[String], step: Step, cart: &mut Option<u64>) -> Result<StepResult> {
    let no_cart = "a plan makes a cart first";
    Ok(match step {
        Step::FindProduct(id) => StepResult::Product(operations::find_product(database, &names[id as usize])?),
        Step::LookupProduct(id) => StepResult::Product(operations::look_up_product(database, id)?),
        Step::CreateCart => {
            *cart = Some(operations::create_cart(database)?);
            StepResult::Done
        }
        Step::AddProduct(id) => {
            operations::add_product(database, cart.ok_or(no_cart)?, id)?;
            StepResult::Done
        }
        Step::Checkout { customer_id } => {
            StepResult::Ordered(operations::checkout(database, cart.take().ok_or(no_cart)?, customer_id)?)
        }
        Step::RateProduct { customer_id, product_id, rating } => {
            operations::rate_product(database, Review { customer_id, product_id, rating, review: None })?;
            StepResult::Done
        }
    })
}

fn answer_call<C: Connection>(database: &C, call: Call) -> Result<Answer> {
    Ok(match call {
        Call::FindProduct(name) => Answer::Product(operations::find_product(database, &name)?),
        Call::LookUpProduct(id) => Answer::Product(operations::look_up_product(database, id)?),
        Call::CreateCart => Answer::CartId(operations::create_cart(database)?),
        Call::AddProduct { cart, product_id } => {
            operations::add_product(database, cart, product_id)?;
            Answer::Done
        }
        Call::Checkout { cart, customer_id } => Answer::Products(operations::checkout(database, cart, customer_id)?),
        Call::RateProduct { customer_id, product_id, rating } => {
            operations::rate_product(database, Review { customer_id, product_id, rating, review: None })?;
            Answer::Done
        }
        Call::Cart(cart) => Answer::Cart(operations::cart(database, cart)?),
    })
}
