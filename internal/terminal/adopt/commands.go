// SPDX-License-Identifier: Apache-2.0

// Package adopt hands a workload over from a HorizontalPodAutoscaler or from KEDA to a
// GPUAutoscaler and back, with the rights of the kubeconfig: gpupilot adopt and gpupilot
// release. At no moment two autoscalers set its replicas, and a run that was interrupted is
// finished by another one: all state is in the objects.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/terminal/remote"
)

// flags are those of both commands.
type flags struct {
	where   remote.Cluster
	dryRun  bool
	timeout time.Duration
}

func (f *flags) register(fs *pflag.FlagSet) {
	f.where.Flags(fs)
	fs.BoolVar(&f.dryRun, "dry-run", true, "print the steps, let the API server check them, and change nothing")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long a step may wait")
}

// objects returns the objects that an argument names.
func (f *flags) objects(args []string) (objects, error) {
	namespace, name, err := f.where.Object(args)
	if err != nil {
		return objects{}, err
	}
	if !isName(namespace) || !isName(name) {
		return objects{}, fmt.Errorf("%s/%s is not the name of an object", namespace, name)
	}
	api, err := f.where.API()
	return objects{api, namespace, name}, err
}

// Adapter returns the converter of the objects for the value of --adapter-config.
type Adapter func(adapterConfig string) (Convert, error)

// Commands returns gpupilot adopt and gpupilot release.
func Commands(adapter Adapter) []*cobra.Command {
	adopt := &cobra.Command{
		Use:   "adopt",
		Short: "Hand a workload over from an HPA or a ScaledObject to a GPUAutoscaler, without a gap",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	adopt.AddCommand(adoptCommand(kindHPA, "hpa", adapter), adoptCommand(kindScaledObject, "scaledobject", adapter))
	return []*cobra.Command{adopt, releaseCommand()}
}

func adoptCommand(kind, use string, adapter Adapter) *cobra.Command {
	var f flags
	var a adoption
	var adapterConfig string
	cmd := &cobra.Command{
		Use:   use + " [NAMESPACE/]NAME",
		Short: "Hand over from a " + kind,
		Long: `Hands a workload over from a ` + kind + ` to the GPUAutoscaler that gpupilot migrate prints for it. The GPUAutoscaler
is created in advice mode. When it is ready, the ` + kind + ` is stopped, and the GPUAutoscaler sets the replicas.
They are never set by both, and do not change. Without --dry-run=false, the steps are printed and not taken.

A run that was interrupted is finished by another one. gpupilot release goes back.`,
		Example: `  gpupilot adopt ` + use + ` llm/chat
  gpupilot adopt ` + use + ` llm/chat --dry-run=false`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if a.convert, err = adapter(adapterConfig); err != nil {
				return err
			}
			if a.objects, err = f.objects(args); err != nil {
				return err
			}
			a.kind = kind
			return a.command(cmd.Context(), &runner{out: cmd.OutOrStdout(), timeout: f.timeout}, f.dryRun)
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().StringVar(&adapterConfig, "adapter-config", "", "prometheus-adapter's configuration file, as for gpupilot migrate")
	cmd.Flags().BoolVar(&a.keepSpec, "keep-spec", false, "take a GPUAutoscaler that exists as it is, though it is not the equivalent")
	cmd.Flags().BoolVar(&a.allowScaleDown, "allow-scale-down", false, "hand over though the GPUAutoscaler asks for fewer replicas than there are")
	return cmd
}

// command prints what differs, and the steps; or takes them.
func (a *adoption) command(ctx context.Context, r *runner, dryRun bool) error {
	steps, err := a.plan(ctx)
	if err != nil {
		return err
	}
	if a.converted.Text != "" {
		r.print("%s\n", a.converted.Text)
	}
	name := a.namespace + "/" + a.name
	switch {
	case len(steps) == 0:
		r.print("GPUAutoscaler %s has taken over from the %s\n", name, a.kind)
		return nil
	case dryRun:
		r.list(steps)
		if err := a.checkRights(ctx); err != nil {
			return err
		}
		if g := a.converted.Guessed; len(g) > 0 {
			r.print("no file says what %s is: it is taken for a series of its name. With --adapter-config FILE, the query behind it is used\n", strings.Join(g, ", "))
		}
		r.print("dry run, nothing was changed: --dry-run=false takes these steps\n")
		return nil
	}
	if err := a.run(ctx, r); err != nil {
		return interrupted(err, "run the command again to finish, or gpupilot release "+name+" to go back")
	}
	r.print("GPUAutoscaler %s has taken over from the %s\n", name, a.kind)
	return nil
}

// interrupted adds what to do after an interrupt.
func interrupted(err error, then string) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %s", err, then)
	}
	return err
}

func releaseCommand() *cobra.Command {
	var f flags
	var r release
	cmd := &cobra.Command{
		Use:   "release [NAMESPACE/]NAME",
		Short: "Hand a workload back to the HPA or the ScaledObject from which gpupilot adopt took it",
		Long: `Hands a workload back to the HorizontalPodAutoscaler or the ScaledObject from which gpupilot adopt took it, also where
that was interrupted. The GPUAutoscaler stops first, and stays in advice mode. The HorizontalPodAutoscaler is created
again as it was. Without --dry-run=false, the steps are printed and not taken.`,
		Example: `  gpupilot release llm/chat
  gpupilot release llm/chat --dry-run=false`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if r.objects, err = f.objects(args); err != nil {
				return err
			}
			return r.command(cmd.Context(), &runner{out: cmd.OutOrStdout(), timeout: f.timeout}, f.dryRun)
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().BoolVar(&r.deletes, "delete", false, "delete the GPUAutoscaler at the end")
	cmd.Flags().BoolVar(&r.force, "force", false, "go on although the controller does not confirm that it stopped, such as where none runs")
	return cmd
}

// command prints what is created, and the steps; or takes them.
func (r *release) command(ctx context.Context, to *runner, dryRun bool) error {
	s, err := r.observe(ctx, "")
	if err != nil {
		return err
	}
	steps, err := r.plan(ctx)
	if err != nil {
		return err
	}
	if s.record != nil && s.record.Saved != nil && s.old == nil {
		b, err := yaml.Marshal(s.record.Saved.object(r.namespace, r.name).Object)
		if err != nil {
			return err
		}
		to.print("%s\n", b)
	}
	name := r.namespace + "/" + r.name
	switch {
	case len(steps) == 0:
		to.print("GPUAutoscaler %s is in advice mode, and there is nothing to hand back\n", name)
		return nil
	case dryRun:
		to.list(steps)
		to.print("dry run, nothing was changed: --dry-run=false takes these steps\n")
		return nil
	}
	if err := to.run(ctx, r.plan); err != nil {
		return interrupted(err, "run the command again to finish")
	}
	to.print("%s is handed back\n", name)
	return nil
}
