// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/deploy"
)

// shippedRights returns the rights of the shipped roles of the controller, verb by verb. The scale of any kind is that of
// Deployments, in the namespaces of GPUAutoscalers.
func (f *Facts) shippedRights() (out []right, err error) {
	scaled := []string{}
	for i := range f.Autoscalers.Items {
		scaled = append(scaled, f.Autoscalers.Items[i].Namespace)
	}
	slices.Sort(scaled)
	scaled = slices.Compact(scaled)
	for doc := range strings.SplitSeq(deploy.ControllerRBAC, "\n---\n") {
		var role clusterRole
		if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
			return nil, fmt.Errorf("the shipped roles: %w", err)
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				in := []string{""}
				if role.Metadata.Namespace != "" {
					in[0] = f.Namespace
				}
				r := right{group: rule.APIGroups[0], resource: resource, name: strings.Join(rule.ResourceNames, ""), role: role.Metadata.Name}
				if resource == "*/scale" {
					r.group, r.resource, in = "apps", "deployments/scale", scaled[:min(len(scaled), maxFindings)]
				}
				for _, r.namespace = range in {
					for _, r.verb = range rule.Verbs {
						out = append(out, r)
					}
				}
			}
		}
	}
	return out, nil
}

// needs asks whether the controller's account has the shipped rights. A controller that is no pod has those of somebody else.
func (w *Where) needs(ctx context.Context, f *Facts) {
	i := slices.IndexFunc(f.Pods.Items, func(p pod) bool { return p.isController() })
	if i < 0 {
		return
	}
	f.Account = "system:serviceaccount:" + f.Namespace + ":" + cmp.Or(f.Pods.Items[i].Spec.Account, controllerName)
	all, err := f.shippedRights()
	for j := 0; err == nil && j < len(all); j++ {
		err = w.ask(ctx, &all[j], f.Account)
	}
	f.Needs.Items, f.Needs.Err = all, err
}

// checkNeeds names what the controller may not do, with all missing verbs of a resource in one finding.
func checkNeeds(f *Facts) (out []Finding) {
	missing := map[right][]string{}
	for _, r := range f.Needs.Items {
		if verb := r.verb; f.Needs.Err == nil && !r.allowed {
			r.verb, r.reason = "", ""
			missing[r] = append(missing[r], verb)
		}
	}
	for r, verbs := range missing {
		what := strings.TrimSuffix(r.resource+"."+r.group, ".")
		if r.namespace != "" {
			what += " in namespace " + r.namespace
		}
		out = append(out, Finding{"ClusterRole " + r.role, fmt.Sprintf("%s may not %s %s: its binding is missing, or the role has changed", f.Account, strings.Join(verbs, ", "), what)})
	}
	return out
}
