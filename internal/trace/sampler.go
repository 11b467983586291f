package trace

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// newSampler returns the sampler of the variables OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG. The SDK does not offer the one that
// it makes of them.
func newSampler(name, arg string) (sdk.Sampler, error) {
	root, ofParent := strings.CutPrefix(cmp.Or(name, "parentbased_always_on"), "parentbased_")
	var sampler sdk.Sampler
	switch root {
	case "always_off":
		return sdk.NeverSample(), nil
	case "always_on":
		sampler = sdk.AlwaysSample()
	case "traceidratio":
		ratio, err := strconv.ParseFloat(cmp.Or(arg, "1"), 64)
		if err != nil || ratio < 0 || ratio > 1 {
			return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q, want a share of the traces from 0 to 1", arg)
		}
		sampler = sdk.TraceIDRatioBased(ratio)
	default:
		return nil, fmt.Errorf("OTEL_TRACES_SAMPLER is %q, want always_on, always_off, traceidratio, or one of these after parentbased_", name)
	}
	if ofParent {
		sampler = sdk.ParentBased(sampler)
	}
	return linked{sampler}, nil
}

// linked samples each span with links, because only spans that are exported are linked to. Another sampler decides on the others.
type linked struct{ sdk.Sampler }

// ShouldSample returns the decision on a span.
func (s linked) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if len(p.Links) > 0 {
		return sdk.SamplingResult{Decision: sdk.RecordAndSample}
	}
	return s.Sampler.ShouldSample(p)
}
