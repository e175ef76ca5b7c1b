"""Objectives of published methods, written from the papers' formulas: plain loops over tokens, nothing of vlrl's.

An objective takes columns, log-probabilities and entropies with gradient [B, T] and advantages [B][T], and returns what
is minimised. `tokens` and `completions` say over what a term is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlrl.types import Rollouts

Rows = list[list[float]]
Objective = Callable[[Rollouts, Tensor, Tensor, Rows], Tensor]


@dataclass(frozen=True)
class Token:
    """One token: its log-probability with gradient, and what is known of it."""

    now: Tensor
    entropy: Tensor
    old: float
    reference: float
    teacher: float
    advantage: float

    @property
    def ratio(self) -> Tensor:
        return torch.exp(self.now - self.old)


def written(c: Rollouts, now: Tensor, entropy: Tensor, advantage: Rows) -> list[list[Token]]:
    """The tokens that carry credit, row by row."""
    return [
        [
            Token(now[b, t], entropy[b, t], float(c.logprobs[b, t]), float(c.reference[b, t]), float(c.teacher[b, t]),
                  advantage[b][t])
            for t in range(c.mask.shape[1]) if c.mask[b, t]
        ]
        for b in range(len(c.mask))
    ]  # fmt: skip


def sums(objectives: Sequence[Objective]) -> Objective:
    return lambda *given: sum(each(*given) for each in objectives)


# -- advantages: reward, group -> a value per decision -----------------------------------------------------------------


def mates(c: Rollouts, i: int) -> list[float]:
    """Rewards of the episode's group, its own included."""
    return [float(r) for r, g in zip(c.reward, c.group, strict=True) if g == c.group[i]]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def deviation(values: Sequence[float], ddof: int = 1) -> float:
    return math.sqrt(sum((v - mean(values)) ** 2 for v in values) / (len(values) - ddof))


def each(c: Rollouts, value: Callable[[int], float]) -> list[float]:
    """A value of each decision's episode."""
    return [value(int(i)) for i in c.episode]


def grpo(eps: float = 1e-6, virtual: float | None = None) -> Callable:
    """`(r - mean) / (std + eps)`; with NGRPO's virtual reward in mean and deviation."""

    def value(c: Rollouts, i: int) -> float:
        group = mates(c, i) + ([] if virtual is None else [virtual])
        return (float(c.reward[i]) - mean(group)) / (deviation(group) + eps)

    return lambda c, past: each(c, lambda i: value(c, i))


def centred(c: Rollouts, past: object) -> list[float]:
    """Dr. GRPO: the reward less its group's mean."""
    return each(c, lambda i: float(c.reward[i]) - mean(mates(c, i)))


def batch_scaled(c: Rollouts, past: object) -> list[float]:
    """Lite PPO: the group's mean, the batch's deviation."""
    return [a / (deviation(c.reward.tolist()) + 1e-6) for a in centred(c, past)]


def leave_one_out(c: Rollouts, past: object) -> list[float]:
    """RLOO: the reward less the mean of the others'."""
    return each(c, lambda i: float(c.reward[i]) - (sum(mates(c, i)) - float(c.reward[i])) / (len(mates(c, i)) - 1))


def max_rl(c: Rollouts, past: object) -> list[float]:
    """MaxRL: `(r - mean) / mean`."""
    return each(c, lambda i: (float(c.reward[i]) - mean(mates(c, i))) / mean(mates(c, i)))


def top_entropy(share: float) -> Callable:
    """GRPO's advantages at the tokens whose entropy is at least the (1 - share)-quantile of the step's; 0 elsewhere."""

    def rows(c: Rollouts, past: object) -> Rows:
        inside = sorted(float(c.entropy[b, t]) for b, t in c.mask.nonzero().tolist())
        place = (1 - share) * (len(inside) - 1)
        below, above = inside[int(place)], inside[min(int(place) + 1, len(inside) - 1)]
        least = below + (place - int(place)) * (above - below)
        plain = per_token(c, grpo()(c, past))
        return [[a * (float(c.entropy[b, t]) >= least) for t, a in enumerate(row)] for b, row in enumerate(plain)]

    return rows


def normal(values: list[float], ddof: int) -> list[float]:
    scale = deviation(values, ddof)
    return [(v - mean(values)) / scale for v in values]


def per_token(c: Rollouts, values: list[float]) -> Rows:
    return [[value] * c.mask.shape[1] for value in values]


def whitened(c: Rollouts, rows: Rows) -> Rows:
    """REINFORCE++: mean 0, variance 1 over all tokens of the batch."""
    inside = [rows[b][t] for b in range(len(rows)) for t in range(len(rows[b])) if c.mask[b, t]]
    scale = math.sqrt(deviation(inside) ** 2 + 1e-8)
    return [[(v - mean(inside)) / scale for v in row] for row in rows]


def kl_return(c: Rollouts, past: object) -> Rows:
    """REINFORCE++: `r - beta sum_(k >= t) (log p_k - log q_k)`, whitened."""
    rows = []
    for b in range(len(c.mask)):
        gaps = [float(c.logprobs[b, t] - c.reference[b, t]) * float(c.mask[b, t]) for t in range(c.mask.shape[1])]
        rows.append([float(c.reward[c.episode[b]]) - 0.001 * sum(gaps[t:]) for t in range(len(gaps))])
    return whitened(c, rows)


def tracked(retention: Callable[[list[Rollouts]], float], floor: float, ddof: int) -> Callable:
    """MSSR, SPO: the reward less its prompt's success rate before the step, normalised over the batch."""

    def values(c: Rollouts, past: list[Rollouts]) -> list[float]:
        counts: dict[str, tuple[float, float]] = {}
        for number, step in enumerate(past, start=1):
            eta = retention(past[:number])
            for name, correct in zip(step.sample_ids, step.correct.tolist(), strict=True):
                a, b = counts.get(name, (4.0, 4.0))
                counts[name] = (eta * a + (correct > 0.5), eta * b + (correct <= 0.5))
        rates = [counts.get(name, (4.0, 4.0)) for name in c.sample_ids]
        raw = [float(r) - a / (a + b) for r, (a, b) in zip(c.reward, rates, strict=True)]
        scale = math.sqrt(max(deviation(raw, ddof) ** 2, floor))
        return [(v - mean(raw)) / scale for v in raw]

    return values


def mssr_rate(steps: list[Rollouts]) -> float:
    """The forgetting rate of the released code: by the mean k3 to the reference over the last 20 steps."""
    means = []
    for c in steps[-20:]:
        rows = []
        for b in range(len(c.mask)):
            gaps = [float(c.reference[b, t] - c.logprobs[b, t]) for t in range(c.mask.shape[1]) if c.mask[b, t]]
            rows.append(mean([math.exp(g) - g - 1 for g in gaps]))
        means.append(mean(rows))
    share = mean(means) / 0.01
    return 0.875 if share > 1 else 0.875 + share * (0.96 - 0.875)


mvsr = tracked(mssr_rate, floor=1e-6, ddof=0)
spo = tracked(lambda steps: 0.96, floor=1e-6, ddof=1)  # D is 0 where no response was scored again


def mssr(c: Rollouts, past: list[Rollouts]) -> Rows:
    """MSSR's shaping behind its normalisation: `A + min(0.4 (-p log p), |A| / 2)`."""
    rows = []
    for b, value in enumerate(mvsr(c, past)):
        plogp = [-math.exp(float(lp)) * float(lp) for lp in c.logprobs[b]]
        rows.append([value + min(0.4 * h, abs(value) / 2.0) for h in plogp])
    return rows


def stable(c: Rollouts, past: object) -> list[float]:
    """StableReinforce: z-scores over the batch, outliers beyond 3 left out."""
    return [z if abs(z) <= 3 else 0.0 for z in normal(c.reward[c.episode].tolist(), 0)]


def a_grae(c: Rollouts, past: object) -> list[float]:
    """A-GRAE with alpha 1 and a largest reward of 1."""
    groups = sorted({int(g) for g in c.group})
    shares = {g: mean([float(r) for r, h in zip(c.reward, c.group, strict=True) if h == g]) for g in groups}
    shares = {g: min(max(share, 0.0), 1.0) for g, share in shares.items()}
    overall, plain, found = mean(list(shares.values())), grpo()(c, past), []
    for a, i in zip(plain, c.episode.tolist(), strict=True):
        root = math.sqrt(shares[int(c.group[i])])
        mixed = (1 - overall) * a / (2 * (1 - root + 1e-6)) + overall * a / (2 * (root + 1e-6))
        found.append(mixed * min(1.0, overall) if mixed > 0 else mixed)
    return found


def turns_of(c: Rollouts, i: int) -> list[int]:
    return [b for b, e in enumerate(c.episode.tolist()) if e == i]


def gae(gamma: float, lam: float, ddof: int | None = None, *, bootstrap: bool = True) -> Callable:
    """GAE over turns from the critic's values before the step; optionally normalised over decisions."""

    def values(c: Rollouts, known: tuple[list[float], list[float]]) -> list[float]:
        value, final = known
        found = [0.0] * len(value)
        for i in range(len(c.reward)):
            turns, running = turns_of(c, i), 0.0
            behind = final[i] if bool(c.truncated[i]) and gamma < 1 and bootstrap else 0.0
            for place in reversed(range(len(turns))):
                b, last = turns[place], place == len(turns) - 1
                reward = float(c.process_reward[b]) + (float(c.reward[i]) if last else 0.0)
                delta = reward + gamma * (behind if last else value[turns[place + 1]]) - value[b]
                running = delta + gamma * lam * running
                found[b] = running
        return found if ddof is None else normal(found, ddof)

    return values


def tgrpo(c: Rollouts, past: object) -> list[float]:
    """TGRPO: the episode's sum against its group's, plus each step against the group's steps at the same time."""
    earned = {b: float(c.process_reward[b]) for b in range(len(c.episode))}
    for i in range(len(c.reward)):
        earned[turns_of(c, i)[-1]] += float(c.reward[i])
    total = [sum(earned[b] for b in turns_of(c, i)) for i in range(len(c.reward))]
    found = []
    for b, i in enumerate(c.episode.tolist()):
        group = [j for j in range(len(total)) if c.group[j] == c.group[i]]
        place = turns_of(c, i).index(b)
        steps = [earned[turns_of(c, j)[place]] for j in group]
        sums_ = [total[j] for j in group]
        found.append((total[i] - mean(sums_)) / (deviation(sums_) + 1e-6)
                     + (earned[b] - mean(steps)) / (deviation(steps) + 1e-6))  # fmt: skip
    return found


# -- shaped rewards ----------------------------------------------------------------------------------------------------


def length(c: Rollouts, i: int) -> int:
    return sum(int(c.mask[b].sum()) for b in turns_of(c, i))


def overlong(cache: int) -> Callable[[Rollouts], list[float]]:
    """DAPO: from Lmax - cache on a penalty that grows to 1 at Lmax = 12."""
    return lambda c: [
        float(r) + min(0.0, -(length(c, i) - (12 - cache)) / cache) for i, r in enumerate(c.reward)
    ]  # fmt: skip


def kl_in_reward(beta: float) -> Callable[[Rollouts], list[float]]:
    """RLOO: the reward less beta times the completion's log-ratio to the reference."""
    return lambda c: [
        float(r) - beta * sum(float(((c.logprobs - c.reference) * c.mask)[b].sum()) for b in turns_of(c, i))
        for i, r in enumerate(c.reward)
    ]


def laser(c: Rollouts) -> list[float]:
    """LASER: right and at most 5 tokens long: 0.5 more; wrong: 0.5 less."""
    return [
        float(r) + ((0.5 if length(c, i) <= 5 else 0.0) if c.correct[i] > 0.5 else -0.5) for i, r in enumerate(c.reward)
    ]


def kimi_length(c: Rollouts) -> list[float]:
    """Kimi k1.5: `0.5 - (len - min) / (max - min)`, for wrong answers at most 0; weight 0.5."""
    found = []
    for i, r in enumerate(c.reward):
        lengths = [length(c, j) for j in range(len(c.reward)) if c.group[j] == c.group[i]]
        gain = 0.5 - (length(c, i) - min(lengths)) / (max(lengths) - min(lengths))
        found.append(float(r) + 0.5 * (gain if c.correct[i] > 0.5 else min(0.0, gain)))
    return found


# -- terms over tokens -------------------------------------------------------------------------------------------------


def tokens(term: Callable[[Token], Tensor], over: str | int) -> Objective:
    """A term's mean over all tokens, over completions (each the mean of its tokens), or `sum / (B over)`."""

    def objective(c: Rollouts, now: Tensor, entropy: Tensor, advantage: Rows) -> Tensor:
        rows = [[term(token) for token in row] for row in written(c, now, entropy, advantage)]
        if over == "tokens":
            return sum(sum(row) for row in rows) / sum(len(row) for row in rows)
        if over == "completions":
            return sum(sum(row) / len(row) for row in rows) / len(rows)
        return sum(sum(row) for row in rows) / (len(rows) * int(over))

    return objective


def clip(low: float, high: float, dual: float | None = None, least: float = 0.0, most: float = math.inf) -> Callable:
    """PPO: `-min(r A, clip(r) A)`; dual clip: at most `-dual A` for A < 0; StableReinforce bounds r first."""

    def term(x: Token) -> Tensor:
        ratio = x.ratio
        if not least <= ratio.item() <= most:
            ratio = torch.tensor(min(max(ratio.item(), least), most), dtype=torch.float64)
        surrogate = torch.minimum(ratio * x.advantage, ratio.clamp(1 - low, 1 + high) * x.advantage)
        if dual is not None and x.advantage < 0:
            surrogate = torch.maximum(surrogate, torch.tensor(dual * x.advantage, dtype=torch.float64))
        return -surrogate

    return term


def plain(x: Token) -> Tensor:
    """The importance-weighted policy gradient, never clipped."""
    return -x.ratio * x.advantage


def k2(x: Token) -> Tensor:
    return (x.now - x.reference) ** 2 / 2


def k3(x: Token) -> Tensor:
    gap = x.reference - x.now
    return torch.exp(gap) - gap - 1


def sapo(x: Token) -> Tensor:
    """SAPO: `-A (4 / tau) sigmoid(tau (r - 1))`."""
    tau = 1.0 if x.advantage > 0 else 1.05
    return -x.advantage * 4 / tau / (1 + torch.exp(-tau * (x.ratio - 1)))


def weighted_k3(x: Token) -> Tensor:
    """DeepSeek-V3.2: k3 times the ratio."""
    return x.ratio * k3(x)


def cispo(most: float) -> Callable[[Token], Tensor]:
    return lambda x: -min(x.ratio.item(), most) * x.advantage * x.now


def imitation(x: Token) -> Tensor:
    return -x.advantage * x.now


def rover(x: Token) -> Tensor:
    return (x.now - x.old - x.advantage) ** 2


def distillation(x: Token) -> Tensor:
    return (x.now - x.teacher) ** 2 / 2


def reverse_kl(x: Token) -> Tensor:
    """On-policy distillation: the log-ratio to the teacher as each token's cost, by the ratio to what sampled."""
    return x.ratio * (x.now.item() - x.teacher)


def jensen_shannon(x: Token) -> Tensor:
    """Of two laws over the written token and all others together: half the KL of each to their mean."""
    now, teacher = x.now, torch.tensor(x.teacher, dtype=torch.float64)
    # random columns hold some that are no probabilities, which leave others next to nothing
    rest = (1 - v.clamp(max=-1e-7).exp() for v in (now, teacher))
    both = [(now.exp(), teacher.exp()), tuple(rest)]
    return sum(0.5 * a * torch.log(2 * a / (a + b)) + 0.5 * b * torch.log(2 * b / (a + b)) for a, b in both)


def weighed(weight: float, term: Callable[[Token], Tensor]) -> Callable[[Token], Tensor]:
    return lambda x: weight * term(x)


def bonus(x: Token) -> Tensor:
    """Minus the entropy."""
    return -x.entropy


def kl_cov(c: Rollouts, now: Tensor, entropy: Tensor, advantage: Rows) -> Tensor:
    """KL-Cov: `-A r`, plus `|log r|` at the 0.2 % of tokens (one at least) of the largest covariance."""
    every = [token for row in written(c, now, entropy, advantage) for token in row]
    of_a, of_p = mean([x.advantage for x in every]), mean([x.now.item() for x in every])
    covariances = [(x.advantage - of_a) * (x.now.item() - of_p) for x in every]
    held = sorted(range(len(every)), key=lambda n: -covariances[n])[: max(1, int(0.002 * len(every)))]
    held_back = sum(torch.abs(every[n].now - every[n].old) for n in held)
    return (sum(plain(x) for x in every) + held_back) / len(every)


# -- terms over whole completions --------------------------------------------------------------------------------------


def completions(term: Callable[[list[Token]], Tensor]) -> Objective:
    """A term's mean over completions."""

    def objective(c: Rollouts, now: Tensor, entropy: Tensor, advantage: Rows) -> Tensor:
        rows = written(c, now, entropy, advantage)
        return sum(term(row) for row in rows) / len(rows)

    return objective


def moved(row: list[Token]) -> Tensor:
    """log(p_now / p_old) of the completion."""
    return sum(x.now - x.old for x in row)


def surrogate(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def rloo(row: list[Token]) -> Tensor:
    """The completion is one action: its ratio is the product of its tokens'."""
    return surrogate(torch.exp(moved(row)), row[0].advantage, 0.2, 0.2)


def gspo(low: float, high: float) -> Callable[[list[Token]], Tensor]:
    return lambda row: surrogate(torch.exp(moved(row) / len(row)), row[0].advantage, low, high)


def luspo(row: list[Token]) -> Tensor:
    """LUSPO: GSPO times the length."""
    return len(row) * gspo(3e-4, 4e-4)(row)


def opsm(delta: float) -> Callable[[list[Token]], Tensor]:
    """DeepSeek-V3.2: PPO's clip; 0 where A < 0 and the policy has left the completion by more than delta a token."""

    def term(row: list[Token]) -> Tensor:
        gone = -moved(row).item() / len(row) > delta and row[0].advantage < 0
        return sum(0 * x.now if gone else clip(0.2, 0.2)(x) for x in row) / len(row)

    return term


def vespo(c: Rollouts, now: Tensor, entropy: Tensor, advantage: Rows) -> Tensor:
    """VESPO: `-w^k exp(l (1 - w)) A log p` over tokens, w the completion's ratio, held."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row in written(c, now, entropy, advantage):
        w = math.exp(min(max(moved(row).item(), math.log(1e-8)), 20.0))
        for x in row:
            k, decay = (2.0, 3.0) if x.advantage > 0 else (3.0, 2.0)
            total, count = total - w**k * math.exp(decay * (1 - w)) * x.advantage * x.now, count + 1
    return total / count


def gspo_token(row: list[Token]) -> Tensor:
    """GSPO-token: `sg(s) p_t / sg(p_t)` in place of s, an advantage for each token."""
    s = torch.exp(moved(row) / len(row)).detach()
    parts = [surrogate(s * torch.exp(x.now - x.now.detach()), x.advantage, 3e-4, 4e-4) for x in row]
    return sum(parts) / len(parts)


def dhpo(row: list[Token]) -> Tensor:
    s = torch.exp(moved(row) / len(row)).clamp(1 - 3e-4, 1 + 4e-4)
    return -sum(x.advantage * (x.ratio.clamp(0.8, 1.2) + s) / 2 for x in row) / len(row)


def mirror_descent(row: list[Token]) -> Tensor:
    """Kimi k1.5: `(A - tau rho)^2 / (2 tau)`, tau 0.1."""
    return (row[0].advantage - 0.1 * moved(row)) ** 2 / 0.2


def direct_advantage(row: list[Token]) -> Tensor:
    """Direct advantage: `(A - beta d)^2 / (2 beta)`, d to the reference, beta 0.1."""
    return (row[0].advantage - 0.1 * sum(x.now - x.reference for x in row)) ** 2 / 0.2


def a_lol(row: list[Token]) -> Tensor:
    """A-LoL: `-max(A, 0) clip(p / p_reference) log p`, the ratio without gradient and within 1 +- 0.9."""
    weight = min(max(math.exp(min(sum(x.now.item() - x.reference for x in row), 20.0)), 0.1), 1.9)
    return -max(row[0].advantage, 0.0) * weight * sum(x.now for x in row) / len(row)


# -- terms over groups -------------------------------------------------------------------------------------------------


def groups(term: Callable[[list[list[Token]], list[float], list[bool]], Tensor]) -> Objective:
    """A term's sum over prompts, by the share of the completions that are theirs."""

    def objective(c: Rollouts, now: Tensor, entropy: Tensor, advantage: Rows) -> Tensor:
        rows, total = written(c, now, entropy, advantage), torch.zeros((), dtype=torch.float64)
        for g in sorted({int(g) for g in c.group}):
            own = [i for i in range(len(rows)) if c.group[i] == g]
            rewards, right = [float(c.reward[i]) for i in own], [bool(c.correct[i] > 0.5) for i in own]
            total = total + len(own) / len(rows) * term([rows[i] for i in own], rewards, right)
        return total

    return objective


def reg_grpo(rows: list[list[Token]], rewards: list[float], right: list[bool]) -> Tensor:
    """Reg-GRPO: standardised log-ratios are regressed onto the advantages."""
    rho = torch.stack([moved(row) for row in rows])
    target = torch.tensor([row[0].advantage for row in rows], dtype=torch.float64)
    scale = torch.sqrt(((rho - rho.mean()) ** 2).sum() / (len(rows) - 1) + 0.1**2)
    return ((target - (rho - rho.mean()) / scale) ** 2).mean()


def copg(rows: list[list[Token]], rewards: list[float], right: list[bool]) -> Tensor:
    """CoPG: over all pairs `(r_i - r_j - beta (d_i - d_j))^2`, d the log-ratio to the reference, beta 0.1."""
    h = [r - 0.1 * sum(x.now - x.reference for x in row) for r, row in zip(rewards, rows, strict=True)]
    pairs = [(h[i] - h[j]) ** 2 for i in range(len(h)) for j in range(i)]
    return sum(pairs) / (len(h) - 1) / (2 * 0.1) / len(h)


def disco(rows: list[list[Token]], rewards: list[float], right: list[bool]) -> Tensor:
    """DisCO: `tau log mean_wrong exp(s / tau) - mean_right s`, s the mean log-probability, tau 10."""
    scores = [sum(x.now for x in row) / len(row) for row in rows]
    good, bad = ([s for s, is_right in zip(scores, right, strict=True) if is_right == wanted] for wanted in (1, 0))
    if not good or not bad:
        return torch.zeros((), dtype=torch.float64)
    return 10 * torch.log(sum(torch.exp(s / 10) for s in bad) / len(bad)) - sum(good) / len(good)


def trust_region(c: Rollouts, now: Tensor, entropy: Tensor, advantage: Rows) -> Tensor:
    """DisCO: `sg(beta (KL - delta)_+) KL` over the step's tokens, beta 1000, delta 1e-4."""
    every = [token for row in written(c, now, entropy, advantage) for token in row]
    drift = sum(x.ratio - (x.now - x.old) - 1 for x in every) / len(every)
    return max(0.0, 1000 * (drift.item() - 1e-4)) * drift


def long2short_dpo(rows: list[list[Token]], rewards: list[float], right: list[bool]) -> Tensor:
    """Kimi k1.5: DPO of the shortest right one against longer wrong ones and right ones of 1.5 times it; beta 0.1."""
    h, total = [0.1 * sum(x.now - x.reference for x in row) for row in rows], torch.zeros((), dtype=torch.float64)
    solved = [i for i, is_right in enumerate(right) if is_right]
    if not solved:
        return total
    best = min(solved, key=lambda i: len(rows[i]))
    for i, row in enumerate(rows):
        if len(row) > len(rows[best]) * (1.5 if right[i] else 1.0):
            total = total - torch.log(torch.sigmoid(h[best] - h[i]))
    return total / len(rows)


def step_apo(rows: list[list[Token]], rewards: list[float], right: list[bool]) -> Tensor:
    """CPL: DPO of each step of value above 0 against each below, less the difference of values; beta 0.3."""
    h, total = [0.3 * sum(x.now - x.reference for x in row) for row in rows], torch.zeros((), dtype=torch.float64)
    for w, better in enumerate(rewards):
        for k, worse in enumerate(rewards):
            if better > 0 > worse:
                total = total - torch.log(torch.sigmoid(h[w] - h[k] - (better - worse)))
    return total / len(rows)


def gepo(rows: list[list[Token]], rewards: list[float], right: list[bool]) -> Tensor:
    """GEPO as reconstructed: right against wrong completions, right ones equally likely."""
    h = [0.1 * sum(x.now - x.reference for x in row) for row in rows]
    good, bad = ([v for v, is_right in zip(h, right, strict=True) if is_right == wanted] for wanted in (1, 0))
    if not good or not bad:
        return torch.zeros((), dtype=torch.float64)
    middle = sum(good) / len(good)
    spread = sum((v - middle) ** 2 for v in good) / len(good)
    return torch.log(1 + torch.exp(sum(bad) / len(bad) - middle)) + 0.1 * spread
