// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"math"
	"math/rand/v2"
)

// The spread of token counts around a mean, as the standard deviation of their logarithm.
// The Azure 2023 conversation trace has 1.2 for prompts and 0.8 for outputs.
const promptSigma, outputSigma = 1.0, 0.8

// Tokens draws the prompt and the output of a request from log-normal distributions with
// these means.
func Tokens(rng *rand.Rand, prompt, output float64) (promptTokens, outputTokens float64) {
	promptTokens = tokens(rng, prompt, promptSigma)
	return promptTokens, tokens(rng, output, outputSigma)
}

// tokens draws a whole number from a log-normal distribution, at most 16 times its mean.
func tokens(rng *rand.Rand, mean, sigma float64) float64 {
	x := mean * math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)
	return math.Ceil(max(1, min(x, 16*mean)))
}

// roundRandomly rounds x up or down, so that the mean is x.
func roundRandomly(rng *rand.Rand, x float64) int {
	n := math.Floor(x)
	if rng.Float64() < x-n {
		n++
	}
	return int(n)
}

// poisson draws from a Poisson distribution, above 50 by its normal approximation.
func poisson(rng *rand.Rand, mean float64) int {
	if mean > 50 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*rng.NormFloat64())))
	}
	n, p := 0, rng.ExpFloat64()
	for p < mean {
		n++
		p += rng.ExpFloat64()
	}
	return n
}

// gamma draws from Gamma(shape, 1) by the method of Marsaglia and Tsang, "A simple method
// for generating gamma variables", ACM TOMS 26 (2000), with their extension to shapes
// below 1.
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(rng, shape+1) * math.Pow(1-rng.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		u := 1 - rng.Float64()
		if math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
