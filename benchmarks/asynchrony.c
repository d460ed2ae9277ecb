/* One simulated run: N virtual workers and a ps on one core, for CartPole, Acrobot and Pendulum.
 *
 * This is `asynchrony_simulated.py` again in C, about a hundred times as fast: the same update
 * (a3c/learn/, a3c/server/exchange.py), virtual time and end of a run. Only random numbers differ.
 * `asynchrony_in_c.py` compiles and starts it; it takes settings as `name=number` and prints JSON.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define H 64 /* units of each of the two hidden layers */
#define MAX_OBS 6
#define MAX_ACTIONS 3
#define MAX_ENVS 64 /* of a worker */
#define MAX_BATCH 8192
#define MAX_WORKERS 256
#define MAX_GAMES 4096 /* that wait to be reported */
#define MAX_PARAMS (2 * ((MAX_OBS + 1) * H + (H + 1) * H) + (MAX_ACTIONS + 1) * (H + 1) + 1)
#define PI 3.14159265358979323846

/* Settings without a default are of the preset; `asynchrony_in_c.py` gives them all. */
#define SETTINGS(X) \
  X(task, 0) X(seed, 1) X(mark, 0) X(max_env_steps, 0) X(workers, 1) \
  X(envs, 0) X(rollout_length, 0) X(minibatches, 0) /* of each worker */ \
  X(samples_per_step, 0) X(epochs, 0) X(ratio_limit, 0) X(gamma, 0) X(gae_lambda, 0) \
  X(advantage_horizon, 0) X(normalize_advantages, 0) X(reward_scale, 0) X(separate_value, 0) \
  X(learning_rate, 0) X(learning_rate_final, 0) X(anneal_start, 0) X(anneal_end, 0) \
  X(adam_beta1, 0) X(adam_beta2, 0) X(adam_epsilon, 0) X(max_gradient_norm, 0) \
  X(value_loss_weight, 0) X(entropy_weight, 0) X(initial_log_deviation, 0) \
  X(predict_weights, 0) /* load the weights expected so many steps later */ \
  X(play_ms, 1) X(learn_ms, 0.3) X(push_ms, 1) /* an env step, a sample, a push */ \
  X(jitter, 0.3) /* standard deviation of the logarithm of each duration */ \
  X(pull, 0) /* load the newest weights before learning */ \
  X(values_again, 0) /* then compute values with them again; 2: before each epoch */ \
  X(together, 0) /* all workers wait for each other before they play and before they learn */ \
  X(alone, 0) /* env steps that the first worker plays before the others start */ \
  X(report_delay, 0) /* env steps between a game's end and its report */ \
  X(replay, 0) /* play no games: learn from so many rollouts that are given, see `replay` */ \
  X(train_on, 1) /* go on to so many times the env steps to solve */

#define FIELD(name, value) double name;
static struct { SETTINGS(FIELD) } c; /* the configuration, constant during the run */

typedef float v8 __attribute__((vector_size(32), aligned(4)));

/* --- random numbers: xorshift128+ ---------------------------------------------------------- */

typedef struct { uint64_t a, b; } Random;

static uint64_t next64(Random *r) {
  uint64_t x = r->a, y = r->b;
  r->a = y;
  x ^= x << 23;
  r->b = x ^ y ^ (x >> 17) ^ (y >> 26);
  return r->b + y;
}

static double uniform(Random *r, double low, double high) {
  return low + (high - low) * ((next64(r) >> 11) * 0x1p-53);
}

static double normal(Random *r) {
  double radius = sqrt(-2 * log(uniform(r, 1e-300, 1)));
  return radius * cos(uniform(r, 0, 2 * PI));
}

static Random seeded(uint64_t seed) {
  Random r = {seed * 0x9E3779B97F4A7C15u + 1, seed ^ 0xD1B54A32D192ED03u};
  for (int i = 0; i < 20; i++) next64(&r);
  return r;
}

/* --- environments, as in Gymnasium --------------------------------------------------------- */

enum { CARTPOLE, ACROBOT, PENDULUM };
static const int NUM_OBS[] = {4, 6, 3}, NUM_ACTIONS[] = {2, 3, 1}, MAX_STEPS[] = {500, 500, 200};

typedef struct {
  double state[4], total; /* the game's return so far */
  int steps;
  int is_over; /* the next step only resets: Gymnasium's vector version of CartPole */
} Env;

static double within(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}

static double angle(double x) { return x - 2 * PI * floor((x + PI) / (2 * PI)); }

static void reset(Env *e, Random *r) {
  *e = (Env){0};
  for (int i = 0; i < 4; i++) {
    double high = c.task == CARTPOLE ? 0.05 : c.task == ACROBOT ? 0.1 : i == 0 ? PI : 1;
    e->state[i] = uniform(r, -high, high);
  }
}

static void observe(const Env *e, float *o) {
  const double *s = e->state;
  if (c.task == CARTPOLE) {
    for (int i = 0; i < 4; i++) o[i] = s[i];
    return;
  }
  *o++ = cos(s[0]), *o++ = sin(s[0]);
  if (c.task == ACROBOT) *o++ = cos(s[1]), *o++ = sin(s[1]), *o++ = s[2], *o = s[3];
  else *o = s[1];
}

static void acrobot_slope(const double *s, double torque, double *slope) {
  double g = 9.8, d1 = 3.5 + cos(s[1]), d2 = 1.25 + 0.5 * cos(s[1]);
  double phi2 = 0.5 * g * cos(s[0] + s[1] - PI / 2);
  double phi1 = -0.5 * s[3] * (s[3] + 2 * s[2]) * sin(s[1]) + 1.5 * g * cos(s[0] - PI / 2) + phi2;
  double turn = torque + d2 / d1 * phi1 - 0.5 * s[2] * s[2] * sin(s[1]) - phi2;
  slope[0] = s[2], slope[1] = s[3];
  slope[3] = turn / (1.25 - d2 * d2 / d1);
  slope[2] = -(d2 * slope[3] + phi1) / d1;
}

/* One step; returns whether the game has terminated. */
static int step(Env *e, double action, double *reward) {
  double *s = e->state;
  e->steps++;
  if (c.task == CARTPOLE) {
    double force = action > 0.5 ? 10 : -10, cosine = cos(s[2]), sine = sin(s[2]);
    double push = (force + 0.05 * s[3] * s[3] * sine) / 1.1;
    double turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1));
    double slope[] = {s[1], push - 0.05 * turn * cosine / 1.1, s[3], turn};
    for (int i = 0; i < 4; i++) s[i] += 0.02 * slope[i];
    *reward = 1;
    return fabs(s[0]) > 2.4 || fabs(s[2]) > 12 * 2 * PI / 360;
  }
  if (c.task == PENDULUM) {
    double torque = within(action, -2, 2), away = angle(s[0]);
    *reward = -(away * away + 0.1 * s[1] * s[1] + 0.001 * torque * torque);
    s[1] = within(s[1] + (15 * sin(s[0]) + 3 * torque) * 0.05, -8, 8);
    s[0] += s[1] * 0.05;
    return 0;
  }
  double slopes[4][4], at[4]; /* the classical Runge-Kutta method */
  for (int j = 0; j < 4; j++) {
    for (int i = 0; i < 4; i++) at[i] = s[i] + (j ? (j == 3 ? 0.2 : 0.1) * slopes[j - 1][i] : 0);
    acrobot_slope(at, action - 1, slopes[j]);
  }
  for (int i = 0; i < 4; i++)
    s[i] += 0.2 / 6 * (slopes[0][i] + 2 * slopes[1][i] + 2 * slopes[2][i] + slopes[3][i]);
  s[0] = angle(s[0]), s[1] = angle(s[1]);
  s[2] = within(s[2], -4 * PI, 4 * PI), s[3] = within(s[3], -9 * PI, 9 * PI);
  int is_up = -cos(s[0]) - cos(s[1] + s[0]) > 1;
  *reward = is_up ? 0 : -1;
  return is_up;
}

/* --- the network: two tanh layers, or two for each head, below a policy and a value head --- */

static int num_obs, num_actions, num_trunks, is_gaussian, num_params;

/* Places in the flat vector: each trunk's weights and biases; then a row of H weights and a bias
 * for each policy parameter and for the value; then the log-deviation of a Gaussian. */
static int trunk(int t) { return t * ((num_obs + 1) * H + (H + 1) * H); }
static int head(int i) { return trunk(num_trunks) + i * (H + 1); }
static int deviation(void) { return head(num_actions + 1); }

static v8 tanh8(v8 x) { /* the rational approximation that TensorFlow uses */
  for (int i = 0; i < 8; i++) x[i] = x[i] < -7.9f ? -7.9f : x[i] > 7.9f ? 7.9f : x[i];
  v8 y = x * x, p = y * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = p * y - 8.60467152213735e-11f, p = p * y + 5.12229709037114e-08f;
  p = p * y + 1.48572235717979e-05f, p = p * y + 6.37261928875436e-04f;
  p = p * y + 4.89352455891786e-03f;
  v8 q = y * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = q * y + 2.26843463243900e-03f, q = q * y + 4.89352518554385e-03f;
  return x * p / q;
}

/* y [n, H] = x [n, in] · w [in, H] + b, or its tanh with biases. Sums of two rows and half of the
 * columns stay in registers. */
static void dense(int n, int in, const float *x, const float *w, const float *b, float *y) {
  for (int s = 0; s < n; s += 2) {
    int other = s + 1 < n ? s + 1 : s;
    for (int half = 0; half < H; half += 32) {
      v8 sums[2][4] = {{{0}}};
      for (int i = 0; i < in; i++)
        for (int k = 0; k < 4; k++) {
          v8 row = ((const v8 *)(w + i * H + half))[k];
          __asm__("" : "+x"(row)); /* load it once for both */
          sums[0][k] += x[s * in + i] * row, sums[1][k] += x[other * in + i] * row;
        }
      for (int k = 0; k < 4; k++)
        for (int j = 0; j < 2; j++) {
          v8 *out = (v8 *)(y + (j ? other : s) * H + half) + k;
          *out = b ? tanh8(sums[j][k] + ((const v8 *)(b + half))[k]) : sums[j][k];
        }
    }
  }
}

/* w [in, H] = xᵀ [in, n] · dy [n, H], and b [H] the sum of dy. */
static void dense_gradient(int n, int in, const float *x, const float *dy, float *w, float *b) {
  for (int half = 0; half < H; half += 32)
    for (int i = 0; i <= in; i += 2) { /* row `in` is b */
      v8 sums[2][4] = {{{0}}};
      for (int s = 0; s < n; s++) {
        float first = i < in ? x[s * in + i] : 1, second = i + 1 < in ? x[s * in + i + 1] : 1;
        for (int k = 0; k < 4; k++) {
          v8 row = ((const v8 *)(dy + s * H + half))[k];
          __asm__("" : "+x"(row));
          sums[0][k] += first * row, sums[1][k] += second * row;
        }
      }
      for (int j = 0; j < 2 && i + j <= in; j++) {
        float *out = i + j < in ? w + (i + j) * H : b;
        memcpy(out + half, sums[j], sizeof sums[j]);
      }
    }
}

static float h1[2][MAX_BATCH * H], h2[2][MAX_BATCH * H]; /* activations of the last `forward` */

static float dot(const float *a, const float *b) {
  v8 sum = {0};
  float total = 0;
  for (int k = 0; k < H / 8; k++) sum += ((const v8 *)a)[k] * ((const v8 *)b)[k];
  for (int i = 0; i < 8; i++) total += sum[i];
  return total;
}

/* Policy parameters [n, actions] and values [n] of observations [n, obs]. */
static void forward(const float *p, int n, const float *obs, float *policy, float *values) {
  for (int t = 0; t < num_trunks; t++) {
    const float *w1 = p + trunk(t), *w2 = w1 + (num_obs + 1) * H;
    dense(n, num_obs, obs, w1, w1 + num_obs * H, h1[t]);
    dense(n, H, h1[t], w2, w2 + H * H, h2[t]);
  }
  for (int i = 0; i < n; i++)
    for (int a = 0; a <= num_actions; a++) {
      int is_value = a == num_actions;
      float y = dot(p + head(a), h2[is_value * (num_trunks - 1)] + i * H) + p[head(a) + H];
      if (is_value) values[i] = y;
      else policy[i * num_actions + a] = y;
    }
}

/* The gradient of the parameters, from those of the last `forward`'s outputs. */
static void backward(const float *p, int n, const float *obs, const float *dpolicy,
                     const float *dvalues, float *g) {
  static float d1[MAX_BATCH * H], d2[MAX_BATCH * H], transposed[H * H];
  memset(g, 0, num_params * sizeof *g);
  for (int t = 0; t < num_trunks; t++) {
    memset(d2, 0, n * H * sizeof *d2);
    int first = t == 0 ? 0 : num_actions, last = num_actions - (t < num_trunks - 1);
    for (int a = first; a <= last; a++) {
      const v8 *w = (const v8 *)(p + head(a));
      v8 *gw = (v8 *)(g + head(a));
      for (int i = 0; i < n; i++) {
        float d = a == num_actions ? dvalues[i] : dpolicy[i * num_actions + a];
        for (int k = 0; k < H / 8; k++) {
          ((v8 *)(d2 + i * H))[k] += d * w[k];
          gw[k] += d * ((const v8 *)(h2[t] + i * H))[k];
        }
        g[head(a) + H] += d;
      }
    }
    int w1 = trunk(t), w2 = w1 + (num_obs + 1) * H;
    for (int i = 0; i < n * H; i++) d2[i] *= 1 - h2[t][i] * h2[t][i];
    dense_gradient(n, H, h1[t], d2, g + w2, g + w2 + H * H);
    for (int i = 0; i < H * H; i++) transposed[i % H * H + i / H] = p[w2 + i];
    dense(n, H, d2, transposed, NULL, d1);
    for (int i = 0; i < n * H; i++) d1[i] *= 1 - h1[t][i] * h1[t][i];
    dense_gradient(n, num_obs, obs, d1, g + w1, g + w1 + num_obs * H);
  }
}

/* `rows` orthonormal vectors of length H, times the gain, each `stride` after the last. */
static void orthogonal(Random *r, int rows, double gain, float *out, int stride) {
  double v[H][H];
  for (int i = 0; i < rows; i++) {
    for (int k = 0; k < H; k++) v[i][k] = normal(r);
    for (int j = 0; j <= i; j++) { /* j == i: to length 1 */
      double product = 0;
      for (int k = 0; k < H; k++) product += v[i][k] * v[j][k];
      for (int k = 0; k < H; k++)
        v[i][k] = j < i ? v[i][k] - product * v[j][k] : v[i][k] / sqrt(product);
    }
    for (int k = 0; k < H; k++) out[i * stride + k] = gain * v[i][k];
  }
}

static void initialize(Random *r, float *p) {
  for (int t = 0; t < num_trunks; t++) {
    orthogonal(r, num_obs, sqrt(2), p + trunk(t), H);
    orthogonal(r, H, sqrt(2), p + trunk(t) + (num_obs + 1) * H, H);
  }
  orthogonal(r, num_actions, 0.01, p + head(0), H + 1);
  orthogonal(r, 1, 1, p + head(num_actions), H + 1);
  if (is_gaussian) p[deviation()] = c.initial_log_deviation;
}

/* The log-probability of an action by policy parameters q. If `d` is given: its derivatives by q
 * and the log-deviation, and in `de` those of the entropy. */
static float log_probability(const float *q, float log_dev, float action, float *d, float *de) {
  if (is_gaussian) {
    float scale = expf(-log_dev), z = (action - q[0]) * scale;
    if (d) d[0] = z * scale, d[1] = z * z - 1, de[0] = 0, de[1] = 1;
    return -0.5f * z * z - log_dev - 0.91893853f; /* half of log 2π */
  }
  float sum = 0, entropy = 0, logs[MAX_ACTIONS];
  for (int a = 0; a < num_actions; a++) sum += expf(q[a] - q[0]);
  for (int a = 0; a < num_actions; a++) {
    logs[a] = q[a] - q[0] - logf(sum);
    entropy -= expf(logs[a]) * logs[a];
  }
  for (int a = 0; d && a < num_actions; a++) {
    d[a] = (a == (int)action) - expf(logs[a]);
    de[a] = -expf(logs[a]) * (logs[a] + entropy);
  }
  return logs[(int)action];
}

static float sample(const float *q, float log_dev, Random *r) {
  if (is_gaussian) return q[0] + expf(log_dev) * normal(r);
  double left = uniform(r, 0, 1);
  int a = 0;
  while (a < num_actions - 1 && (left -= exp(log_probability(q, 0, a, NULL, NULL))) >= 0) a++;
  return a;
}

/* --- the ps, and the judge of the run ------------------------------------------------------ */

static struct {
  float p[MAX_PARAMS], mean[MAX_PARAMS], square[MAX_PARAMS], gathered[MAX_PARAMS];
  double samples, moments[3]; /* gathered samples; weight, mean, mean square of advantages */
  long env_steps, updates, pushes, staleness; /* staleness: the sum over pushes */
} ps;

/* Add the mean gradient of n samples; if that is enough, make a clipped step of Adam. */
static void push(const float *g, int n, double rate) {
  for (int i = 0; i < num_params; i++) ps.gathered[i] += n * g[i];
  ps.samples += n;
  if (ps.samples + n / 2.0 < c.samples_per_step) return;
  double squares = 0, limit = c.max_gradient_norm;
  for (int i = 0; i < num_params; i++) squares += (double)ps.gathered[i] * ps.gathered[i];
  double norm = sqrt(squares) / ps.samples;
  float scale = (limit && norm > limit ? limit / norm : 1) / ps.samples;
  ps.updates++;
  float b1 = c.adam_beta1, b2 = c.adam_beta2, epsilon = c.adam_epsilon;
  float size = rate * sqrt(1 - pow(b2, ps.updates)) / (1 - pow(b1, ps.updates));
  for (int i = 0; i < num_params; i++) {
    float d = ps.gathered[i] * scale;
    ps.mean[i] += (1 - b1) * (d - ps.mean[i]);
    ps.square[i] += (1 - b2) * (d * d - ps.square[i]);
    ps.p[i] -= size * ps.mean[i] / (sqrtf(ps.square[i]) + epsilon);
  }
  memset(ps.gathered, 0, sizeof ps.gathered);
  ps.samples = 0;
}

static struct {
  double returns[100], sum, mean; /* of the last 100 games */
  double start, best, lowest; /* the first mean, the best, the lowest since the run is solved */
  long games, solved_at;
  int collapsed;
  double waiting[MAX_GAMES], due[MAX_GAMES]; /* reports, and the env step at which they arrive */
  int num_waiting;
} judge;

/* As in judge.py. */
static void count(double game) {
  double *slot = &judge.returns[judge.games % 100];
  judge.sum += game - *slot;
  *slot = game;
  if (++judge.games < 100) return;
  double mean = judge.mean = judge.sum / 100;
  if (judge.games == 100) judge.start = judge.best = mean;
  judge.best = fmax(judge.best, mean);
  double gained = judge.best - judge.start;
  judge.collapsed |= 2 * gained >= c.mark - judge.start && mean - judge.start < gained / 2;
  if (!judge.solved_at && mean >= c.mark) judge.solved_at = ps.env_steps, judge.lowest = mean;
  judge.lowest = fmin(judge.lowest, mean);
}

static void report(const double *games, int n) {
  for (int i = 0; i < n && judge.num_waiting < MAX_GAMES; i++) {
    judge.waiting[judge.num_waiting] = games[i];
    judge.due[judge.num_waiting++] = ps.env_steps + c.report_delay;
  }
  int done = 0;
  while (done < judge.num_waiting && judge.due[done] <= ps.env_steps) count(judge.waiting[done++]);
  judge.num_waiting -= done;
  memmove(judge.waiting, judge.waiting + done, judge.num_waiting * sizeof(double));
  memmove(judge.due, judge.due + done, judge.num_waiting * sizeof(double));
}

/* --- a worker ------------------------------------------------------------------------------ */

#define ROWS(X) X(action) X(reward) X(discount) X(value) X(log_p) X(trains) X(advantage) X(goal)

typedef struct {
  float p[MAX_PARAMS]; /* the weights that it holds */
  float newest[MAX_PARAMS], last_step[MAX_PARAMS]; /* those that it loaded last; their change */
  double moments[3];
  long env_steps, updates;
  Random random;
  Env envs[MAX_ENVS];
  /* The rollout, [T, B]; `next` are the observations after its end, `cut` those where a game was
   * truncated, else NaN; `goal` is what the value learns. */
  float obs[MAX_BATCH * MAX_OBS], next[MAX_ENVS * MAX_OBS], cut[MAX_BATCH * MAX_OBS];
#define ROW(name) float name[MAX_BATCH];
  ROWS(ROW)
  float end[MAX_ENVS]; /* values of `next` */
  double ended[MAX_BATCH]; /* returns of games */
  int num_ended, order[MAX_BATCH];
  double keep, news[3], rate; /* for the next push: an update of the moments, the learning rate */
  int pushed; /* pushes of this rollout; -1 while it plays */
  double due; /* virtual ms at which its current work ends */
} Worker;

static int size_of_rollout(void) { return c.envs * c.rollout_length; }

static void load(Worker *w) {
  long steps = ps.updates - w->updates;
  for (int i = 0; i < num_params; i++) {
    if (steps) w->last_step[i] = (ps.p[i] - w->newest[i]) / steps;
    w->newest[i] = ps.p[i];
    w->p[i] = ps.p[i] + c.predict_weights * w->last_step[i];
  }
  memcpy(w->moments, ps.moments, sizeof ps.moments);
  w->env_steps = ps.env_steps;
  w->updates = ps.updates;
}

static void play(Worker *w) {
  int B = c.envs;
  float policy[MAX_ENVS * MAX_ACTIONS], log_dev = is_gaussian ? w->p[deviation()] : 0, value = 0;
  w->num_ended = 0;
  for (int i = 0; i < size_of_rollout(); i++) {
    int b = i % B;
    if (b == 0) {
      for (int k = 0; k < B; k++) observe(&w->envs[k], w->obs + (i + k) * num_obs);
      forward(w->p, B, w->obs + i * num_obs, policy, w->value + i);
    }
    Env *e = &w->envs[b];
    const float *q = policy + b * num_actions;
    w->action[i] = sample(q, log_dev, &w->random);
    w->log_p[i] = log_probability(q, log_dev, w->action[i], NULL, NULL);
    w->trains[i] = !e->is_over;
    w->reward[i] = w->discount[i] = 0;
    w->cut[i * num_obs] = NAN;
    if (e->is_over) {
      reset(e, &w->random);
      continue;
    }
    double reward;
    int terminated = step(e, w->action[i], &reward);
    e->total += reward;
    w->reward[i] = reward * c.reward_scale;
    if (!terminated && e->steps < MAX_STEPS[(int)c.task]) {
      w->discount[i] = c.gamma;
      continue;
    }
    w->ended[w->num_ended++] = e->total;
    if (!terminated) observe(e, w->cut + i * num_obs);
    if (c.task == CARTPOLE) e->is_over = 1;
    else reset(e, &w->random);
  }
  for (int b = 0; b < B; b++) observe(&w->envs[b], w->next + b * num_obs);
  forward(w->p, B, w->next, policy, w->end);
  for (int i = 0; i < size_of_rollout(); i++)
    if (!isnan(w->cut[i * num_obs])) {
      forward(w->p, 1, w->cut + i * num_obs, policy, &value);
      w->reward[i] += c.gamma * value;
    }
}

/* Generalised advantage estimation, and advantages normalised by the moments of all workers. */
static void estimate(Worker *w) {
  int B = c.envs, size = size_of_rollout();
  double sum = 0, squares = 0, n = 0, advantages[MAX_ENVS] = {0};
  for (int i = size - 1; i >= 0; i--) {
    double next = i + B < size ? w->value[i + B] : w->end[i % B], *advantage = &advantages[i % B];
    *advantage = w->reward[i] - w->value[i] + w->discount[i] * (next + c.gae_lambda * *advantage);
    w->advantage[i] = *advantage;
    w->goal[i] = *advantage + w->value[i];
    if (w->trains[i]) sum += *advantage, squares += *advantage * *advantage, n++;
  }
  if (!c.advantage_horizon || !n) return;
  w->keep = exp(-n / c.advantage_horizon);
  double news[] = {1, sum / n, squares / n}, now[3];
  for (int i = 0; i < 3; i++) {
    w->news[i] = (1 - w->keep) * news[i];
    now[i] = w->moments[i] * w->keep + w->news[i];
  }
  double mean = now[1] / now[0], deviation = sqrt(fmax(now[2] / now[0] - mean * mean, 0));
  for (int i = 0; i < size; i++) w->advantage[i] = (w->advantage[i] - mean) / (deviation + 1e-6);
}

/* Compute values and advantages again with the weights that the worker holds. */
static void estimate_again(Worker *w) {
  static float policy[MAX_BATCH * MAX_ACTIONS];
  forward(w->p, size_of_rollout(), w->obs, policy, w->value);
  forward(w->p, c.envs, w->next, policy, w->end);
  estimate(w);
}

static double annealed(long env_steps) {
  double progress = fmax(0, (env_steps - c.anneal_start) / (c.anneal_end - c.anneal_start));
  return c.learning_rate + (c.learning_rate_final - c.learning_rate) * fmin(1, progress);
}

static void begin_to_learn(Worker *w) {
  if (c.pull) load(w);
  w->rate = annealed(w->env_steps);
  w->keep = 1, memset(w->news, 0, sizeof w->news);
  if (c.values_again) estimate_again(w);
  else estimate(w);
  w->pushed = 0;
}

/* Compute the gradient of the next minibatch, push it and load the new weights. */
static void learn(Worker *w) {
  static float obs[MAX_BATCH * MAX_OBS], policy[MAX_BATCH * MAX_ACTIONS], values[MAX_BATCH],
      dpolicy[MAX_BATCH * MAX_ACTIONS], dvalues[MAX_BATCH], g[MAX_PARAMS];
  int parts = c.minibatches, part = w->pushed % parts, epoch = w->pushed / parts, n = 0;
  int size = size_of_rollout(), rest = size % parts, rows[MAX_BATCH];
  if (part == 0) {
    if (epoch && c.values_again > 1) estimate_again(w);
    for (int i = 0; i < size; i++) { /* a random order, each row put in at a random place */
      int j = next64(&w->random) % (i + 1);
      w->order[i] = w->order[j], w->order[j] = i;
    }
  }
  int first = part * (size / parts) + (part < rest ? part : rest);
  double sum = 0, squares = 0;
  for (int i = first; i < first + size / parts + (part < rest); i++) {
    int row = w->order[i];
    if (!w->trains[row]) continue;
    memcpy(obs + n * num_obs, w->obs + row * num_obs, num_obs * sizeof *obs);
    sum += w->advantage[row], squares += w->advantage[row] * w->advantage[row];
    rows[n++] = row;
  }
  if (!n) { /* all games were reset: a push would step without samples */
    w->pushed++;
    return;
  }
  double mean = 0, scale = 1;
  if (c.normalize_advantages) {
    mean = sum / n;
    scale = 1 / (sqrt(fmax(squares / n - mean * mean, 0)) + 1e-6);
  }
  forward(w->p, n, obs, policy, values);
  float log_dev = is_gaussian ? w->p[deviation()] : 0, d[MAX_ACTIONS + 1], de[MAX_ACTIONS + 1];
  float ddeviation = 0;
  for (int i = 0; i < n; i++) {
    int row = rows[i];
    float *q = policy + i * num_actions, advantage = (w->advantage[row] - mean) * scale;
    float log_p = log_probability(q, log_dev, w->action[row], d, de);
    float ratio = c.ratio_limit ? expf(log_p - w->log_p[row]) : 1;
    int is_clipped = advantage > 0 ? ratio > 1 + c.ratio_limit : ratio < 1 - c.ratio_limit;
    float weight = is_clipped ? 0 : advantage * ratio;
    for (int k = 0; k < num_actions; k++)
      dpolicy[i * num_actions + k] = -(weight * d[k] + c.entropy_weight * de[k]) / n;
    if (is_gaussian) ddeviation -= (weight * d[1] + c.entropy_weight * de[1]) / n;
    dvalues[i] = c.value_loss_weight * (values[i] - w->goal[row]) / n;
  }
  backward(w->p, n, obs, dpolicy, dvalues, g);
  if (is_gaussian) g[deviation()] = ddeviation;
  ps.staleness += ps.updates - w->updates;
  ps.pushes++;
  push(g, n, w->rate);
  if (epoch == 0) ps.env_steps += n;
  for (int i = 0; i < 3; i++) ps.moments[i] = ps.moments[i] * w->keep + w->news[i];
  w->keep = 1, memset(w->news, 0, sizeof w->news);
  w->pushed++;
  load(w);
}

/* --- virtual time -------------------------------------------------------------------------- */

static Worker workers[MAX_WORKERS];
static Random durations;

static double lasting(double mean_ms) {
  return mean_ms * exp(-c.jitter * c.jitter / 2 + c.jitter * normal(&durations));
}

static void begin_to_play(Worker *w, double now) {
  load(w);
  play(w);
  w->pushed = -1;
  w->due = now + lasting(size_of_rollout() * c.play_ms);
}

static void begin_a_push(Worker *w, double now) {
  w->due = now + lasting(size_of_rollout() / c.minibatches * c.learn_ms + c.push_ms);
}

/* Whether worker w must wait for the others at the end of its work, with `together`. */
static int waits(Worker *w, int num_workers) {
  static int num_waiting;
  if (!c.together) return 0;
  w->due = INFINITY;
  num_waiting = (num_waiting + 1) % num_workers;
  return num_waiting > 0;
}

static void run(void) {
  int num_workers = c.workers, started = c.alone ? 1 : num_workers;
  int num_pushes = c.minibatches * c.epochs;
  double stop = c.max_env_steps, now = 0, first_ms = size_of_rollout() * c.play_ms;
  for (int k = 0; k < started; k++) begin_to_play(&workers[k], uniform(&durations, 0, first_ms));
  while (ps.env_steps < stop) {
    Worker *w = &workers[0];
    for (int k = 1; k < started; k++)
      if (workers[k].due < w->due) w = &workers[k];
    now = w->due;
    for (; started < num_workers && ps.env_steps >= c.alone; started++) {
      memcpy(workers[started].newest, ps.p, sizeof ps.p);
      workers[started].updates = ps.updates;
      begin_to_play(&workers[started], now + uniform(&durations, 0, first_ms));
    }
    Worker *first = c.together ? workers : w, *last = c.together ? workers + started - 1 : w;
    if (w->pushed < 0) {
      if (waits(w, started)) continue;
      for (w = first; w <= last; w++) begin_to_learn(w), begin_a_push(w, now);
      continue;
    }
    learn(w);
    begin_a_push(w, now);
    if (w->pushed < num_pushes) continue;
    report(w->ended, w->num_ended);
    if (judge.solved_at) stop = c.train_on * judge.solved_at;
    if (waits(w, started)) continue;
    for (w = first; w <= last; w++) begin_to_play(w, now);
  }
}

static void get(float *to, int n) {
  if (fread(to, sizeof *to, n, stdin) != (size_t)n) fprintf(stderr, "too little input\n"), exit(2);
}

/* Read the first weights and rollouts of the workers in turn; write the weights learnt from them.
 * With one minibatch nothing is random, so the weights must be those of the cluster's own code. */
static void replay(void) {
  int size = size_of_rollout();
  get(ps.p, num_params);
  for (int k = 0; k < c.workers; k++) load(&workers[k]);
  for (int i = 0; i < c.replay; i++) {
    Worker *w = &workers[i % (int)c.workers];
    get(w->obs, size * num_obs), get(w->next, c.envs * num_obs);
    get(w->action, size), get(w->reward, size), get(w->discount, size);
    get(w->log_p, size), get(w->trains, size);
    estimate_again(w); /* the values of play */
    begin_to_learn(w);
    while (w->pushed < c.minibatches * c.epochs) learn(w);
  }
  fwrite(ps.p, sizeof *ps.p, num_params, stdout);
}

static void set(const char *given) {
#define SET(name, value) \
  if (!strncmp(given, #name "=", sizeof #name)) { c.name = atof(given + sizeof #name); return; }
  SETTINGS(SET)
  fprintf(stderr, "unknown setting: %s\n", given);
  exit(2);
}

int main(int count, char **given) {
#define DEFAULT(name, value) c.name = value;
  SETTINGS(DEFAULT)
  for (int i = 1; i < count; i++) set(given[i]);
  int task = c.task;
  num_obs = NUM_OBS[task], num_actions = NUM_ACTIONS[task], is_gaussian = task == PENDULUM;
  num_trunks = c.separate_value ? 2 : 1, num_params = deviation() + is_gaussian;
  if (c.workers > MAX_WORKERS || c.envs > MAX_ENVS || size_of_rollout() > MAX_BATCH) {
    fprintf(stderr, "too many workers, or too large a rollout\n");
    return 2;
  }
  durations = seeded(c.seed);
  initialize(&durations, ps.p);
  for (int k = 0; k < c.workers; k++) {
    Worker *w = &workers[k];
    w->random = seeded(c.seed * 1000 + k + 1);
    for (int b = 0; b < c.envs; b++) reset(&w->envs[b], &w->random);
  }
  if (c.replay) {
    replay();
    return 0;
  }
  run();
  printf("{\"solved\": %s, \"env_steps\": %ld, \"staleness\": %.2f, \"updates\": %ld, "
         "\"mean_return_100\": %.2f, \"lowest\": %.2f, \"collapsed\": %s}\n",
         judge.solved_at ? "true" : "false", judge.solved_at ? judge.solved_at : ps.env_steps,
         (double)ps.staleness / ps.pushes, ps.updates, judge.mean, judge.lowest,
         judge.collapsed ? "true" : "false");
  return 0;
}
