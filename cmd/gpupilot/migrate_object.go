// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/replay/migrate"
	"github.com/gpupilot/gpupilot/internal/terminal/adopt"
)

// migrateFlags are the flags of gpupilot migrate hpa and migrate scaledobject.
type migrateFlags struct {
	kind, output, adapterConfig string
	replay                      backtestFlags
}

// migrateObjectCommand translates HPAs or ScaledObjects.
func migrateObjectCommand(kind string) *cobra.Command {
	f := migrateFlags{kind: kind}
	use, article := "hpa", "a HorizontalPodAutoscaler"
	if kind == migrate.KindScaledObject {
		use, article = "scaledobject", "a ScaledObject"
	}
	cmd := &cobra.Command{
		Use:   use + " NAME|FILE [-n NAMESPACE]",
		Short: "Print the GPUAutoscaler that is equivalent to " + article + ", and replay both",
		Long: `Prints the GPUAutoscaler that is equivalent to ` + article + `. Comments say for each field what differs and
what has no equivalent. With a recorded load (--trace, --prometheus or --from-cluster), both are replayed on it, and
the comments say what would differ. Nothing in the cluster is changed.

NAME is read from the cluster of the kubeconfig. FILE may have several objects, also PrometheusRules, which tell the
series of recording rules; - is standard input. What is printed passes the controller's validation for its namespace.
The exit code is 1 if an object has no equivalent signal.`,
		Example: `  gpupilot migrate ` + use + ` chat -n ml > chat.yaml
  gpupilot migrate ` + use + ` chat.yaml --trace requests.csv.gz --startup 2m`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.replay.isSet = func(flag string) bool {
				x := cmd.Flags().Lookup(flag)
				return x != nil && x.Changed && x.Value.String() != ""
			}
			return f.run(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// replayFlags are the flags of gpupilot backtest that select the load and the service.
var replayFlags = []string{
	"trace", "prometheus", "prometheus-http-config", "query", "history", "history-step", "prompt-tokens", "output-tokens",
	"from-cluster", "controller", "viewer-service-account", "kubeconfig", "context", "namespace",
	"startup", "replicas", "seeds", "hours", "model", "ttft", "itl", "patience", "workers", "quiet",
}

func (f *migrateFlags) register(fl *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.replay.register(all)
	for _, name := range replayFlags {
		fl.AddFlag(all.Lookup(name))
	}
	fl.StringVar(&f.adapterConfig, "adapter-config", "", "prometheus-adapter's configuration file, which tells the queries behind the names of custom and external metrics; it may have PrometheusRules beside it")
	fl.StringVarP(&f.output, "output", "o", "text", "text (YAML with comments), json or yaml")
}

func (f *migrateFlags) run(ctx context.Context, arg string, stdin io.Reader, stdout, stderr io.Writer) error {
	if f.output != "text" && f.output != "json" && f.output != "yaml" {
		return fmt.Errorf("-o %s: want text, json or yaml", f.output)
	}
	o, err := migrateOptions(f.adapterConfig)
	if err != nil {
		return err
	}
	docs, err := f.read(ctx, arg, stdin)
	if err != nil {
		return err
	}
	if _, err := o.Add(docs); err != nil {
		return err
	}
	o.Namespace = f.replay.controller.where.Namespace
	found, printed := 0, 0
	var refused []error // which do not keep the other objects from being printed
	for _, d := range docs {
		if d.Kind != f.kind {
			continue
		}
		found++
		r, err := migrate.Convert(d, o)
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			refused = append(refused, err)
			continue
		}
		if err := f.one(ctx, r, printed, stdout, stderr); err != nil {
			return err
		}
		printed++
	}
	if found == 0 {
		return fmt.Errorf("%s: the file has no %s", arg, f.kind)
	}
	return errors.Join(refused...)
}

// migrateOptions reads the file of --adapter-config, unless it is empty.
func migrateOptions(adapterConfig string) (o migrate.Options, err error) {
	if adapterConfig == "" {
		return o, nil
	}
	b, err := os.ReadFile(adapterConfig)
	if err != nil {
		return o, fmt.Errorf("--adapter-config: %w", err)
	}
	if o, err = migrate.ReadOptions(adapterConfig, b); err != nil {
		return o, fmt.Errorf("--adapter-config %s: %w", adapterConfig, err)
	}
	return o, nil
}

// adoptConverter returns what gpupilot adopt makes of an object: what migrate prints, in advice mode.
func adoptConverter(adapterConfig string) (adopt.Convert, error) {
	o, err := migrateOptions(adapterConfig)
	return func(kind string, object []byte) (adopt.Converted, error) {
		r, err := migrate.Convert(migrate.Document{Kind: kind, Text: object}, o)
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return adopt.Converted{}, err
		}
		r.Object.Spec.Actuation = v1alpha1.ActuationAdvise
		text, err := r.YAML()
		return adopt.Converted{Object: r.Object, Text: text, Guessed: r.Guessed}, err
	}, err
}

// read reads the documents of a file, or an object of the cluster.
func (f *migrateFlags) read(ctx context.Context, arg string, stdin io.Reader) ([]migrate.Document, error) {
	if isFile(arg) {
		b, err := readArgument(arg, stdin)
		if err != nil {
			return nil, err
		}
		return migrate.Split(arg, b)
	}
	where := &f.replay.controller.where
	namespace, name, err := where.Object([]string{arg})
	if err != nil {
		return nil, err
	}
	c, err := where.API()
	if err != nil {
		return nil, err
	}
	path := []string{"apis", "autoscaling", "v2", "namespaces", namespace, "horizontalpodautoscalers", name}
	if f.kind == migrate.KindScaledObject {
		path = []string{"apis", "keda.sh", "v1alpha1", "namespaces", namespace, "scaledobjects", name}
	}
	var object json.RawMessage
	if err := c.Do(ctx, "GET", nil, &object, path...); err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", f.kind, namespace, name, err)
	}
	return []migrate.Document{{Kind: f.kind, Text: object}}, nil
}

// migrated is the result as JSON or YAML.
type migrated struct {
	Object  *v1alpha1.GPUAutoscaler `json:"object"`
	Notes   []migrate.Note          `json:"notes,omitempty"`
	DryRun  *migrate.DryRun         `json:"dryRun,omitempty"`
	Skipped string                  `json:"dryRunSkipped,omitempty"`
}

// one prints one translation, and replays it if there is a load.
func (f *migrateFlags) one(ctx context.Context, r *migrate.Result, before int, stdout, stderr io.Writer) (err error) {
	out := migrated{Object: r.Object, Notes: r.Notes}
	if f.hasLoad() {
		if out.DryRun, err = f.dryRun(ctx, r, stderr); err != nil {
			return err
		}
	} else {
		out.Skipped = "no recorded load: give --trace FILE, --prometheus with --query, or --from-cluster"
	}
	if f.output != "text" {
		return writeAs(stdout, f.output, out, nil)
	}
	text, err := r.YAML()
	if err != nil {
		return err
	}
	if before > 0 {
		text = "---\n" + text
	}
	comment := "Dry run: " + out.Skipped + "\n"
	if out.DryRun != nil {
		comment = out.DryRun.Text()
	}
	header, object, _ := strings.Cut(text, "apiVersion:")
	_, err = io.WriteString(stdout, header+"# "+strings.ReplaceAll(strings.TrimSpace(comment), "\n", "\n# ")+"\napiVersion:"+object)
	return err
}

func (f *migrateFlags) hasLoad() bool {
	return len(f.replay.traces) > 0 || f.replay.isSet("prometheus") || f.replay.controller.object != ""
}

// dryRun replays the original and its equivalent on the load.
func (f *migrateFlags) dryRun(ctx context.Context, r *migrate.Result, stderr io.Writer) (*migrate.DryRun, error) {
	b := &f.replay
	b.output, b.peers = "table", "none"
	b.controller.controller.Named = b.isSet("controller")
	if err := b.check(); err != nil {
		return nil, err
	}
	original, err := r.Entry()
	if err != nil {
		return &migrate.DryRun{Reason: fmt.Sprintf("the %s cannot be replayed: %v", r.Kind, err)}, nil
	}
	equivalent, err := r.Policy()
	if err != nil {
		return nil, err
	}
	b.given = &givenContenders{original: original, equivalent: equivalent}
	study, err := b.study(ctx, stderr)
	if err != nil {
		return nil, err
	}
	study.References = nil
	cases, err := b.replay(ctx, study, stderr)
	if err != nil {
		return nil, err
	}
	return r.DryRun(cases, study), nil
}
