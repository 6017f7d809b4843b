package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/topology"
)

// fleetGroup is a command that only has sub-commands.
func fleetGroup(use, short, long string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(sub...)
	return c
}

// fleetCommand gives a command --server, and runs it with a client of the server. works are its own flags.
func fleetCommand(
	c *cobra.Command, works []string, run func(ctx context.Context, client *fleetapi.Client, args []string) error,
) *cobra.Command {
	var on remote
	on.flag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := on.fleet(c, works...)
		if err != nil {
			return err
		}
		defer client.Close()
		return run(c.Context(), client, args)
	}
	return c
}

func userCommand() *cobra.Command {
	return fleetGroup("user", "List, set and delete the users of a fleet",
		"Says who may use a fleet: users have a role and belong to projects. A user needs a token\n"+
			"('numavisor token create').", userListCommand(), userSetCommand(), userDeleteCommand())
}

func userListCommand() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List users with roles, projects and tokens",
		Long: "Lists the users of a fleet with their roles, their projects and the number of their tokens.",
		Args: takes(0, 0), Example: "  numavisor user list"}
	return fleetCommand(c, nil, func(ctx context.Context, client *fleetapi.Client, _ []string) error {
		users, err := client.Users(ctx)
		if err != nil {
			return err
		}
		return emit(c, users, func(w io.Writer) { printUsers(w, users.Users) })
	})
}

func printUsers(w io.Writer, users []fleetapi.User) {
	rows := [][]string{{"USER", "ROLE", "PROJECTS", "TOKENS"}}
	for i := range users {
		u := &users[i]
		rows = append(rows, []string{u.Name, string(u.Role), cmp.Or(strings.Join(u.Projects, ", "), "-"),
			fmt.Sprint(len(u.Tokens))})
	}
	columns(w, rows)
}

func userSetCommand() *cobra.Command {
	var role string
	var projects []string
	c := &cobra.Command{Use: "set USER --role ROLE [--projects LIST]", DisableFlagsInUseLine: true,
		Short: "Create a user, or change role and projects",
		Long: `Creates a user of a fleet, or gives an existing one another role and other projects.
A viewer reads, an operator also changes VMs of the user's projects (with the project '*'
also hosts), an admin does everything in all projects.`,
		Args: takes(1, 1), Example: "  numavisor user set ann --role operator --projects shop,web"}
	c.Flags().StringVar(&role, "role", "", "viewer, operator or admin")
	c.Flags().StringSliceVar(&projects, "projects", nil, "projects of the user; '*': all")
	return fleetCommand(c, []string{"role", "projects"},
		func(ctx context.Context, client *fleetapi.Client, args []string) error {
			if role == "" {
				return wrongUse("--role is needed: %s", strings.Join(fleetapi.Role("").Words(), ", "))
			}
			u, err := client.PutUser(ctx, args[0], fleetapi.UserEdit{Role: fleetapi.Role(role), Projects: projects})
			if err != nil {
				return err
			}
			return emit(c, u, func(w io.Writer) { printUsers(w, []fleetapi.User{u}) })
		})
}

func userDeleteCommand() *cobra.Command {
	c := &cobra.Command{Use: "delete USER", Short: "Remove a user and the user's tokens",
		Long: "Removes a user of a fleet. The user's tokens are refused from then on.", Args: takes(1, 1),
		Example: "  numavisor user delete ann"}
	return fleetCommand(c, nil, func(ctx context.Context, client *fleetapi.Client, args []string) error {
		if err := client.DeleteUser(ctx, args[0]); err != nil {
			return err
		}
		return emitDone(c, "deleted", args[0])
	})
}

// emitDone says that something was done with an object of a fleet.
func emitDone(c *cobra.Command, what, name string) error {
	return emit(c, map[string]string{what: name}, func(w io.Writer) { printf(w, "%s: %s\n", name, what) })
}

func tokenCommand() *cobra.Command {
	return fleetGroup("token", "List, create and revoke tokens of a fleet's users",
		"Handles the tokens with which users, programs and hosts reach a fleet's server.",
		tokenListCommand(), tokenCreateCommand(), tokenRevokeCommand(), tokenJoinCommand())
}

func tokenListCommand() *cobra.Command {
	c := &cobra.Command{Use: "list [USER]", Short: "List tokens; they themselves are not stored",
		Long: "Lists the tokens of one user or of all: when they were made and when they expire. The server\n" +
			"stores only hashes of tokens.", Args: takes(0, 1), Example: "  numavisor token list ann"}
	return fleetCommand(c, nil, func(ctx context.Context, client *fleetapi.Client, args []string) error {
		users, err := client.Users(ctx)
		if err != nil {
			return err
		}
		rows, found := [][]string{{"TOKEN", "USER", "CREATED", "EXPIRES"}}, len(args) == 0
		shown := fleetapi.Users{Users: []fleetapi.User{}}
		for i := range users.Users {
			u := &users.Users[i]
			if len(args) == 1 && u.Name != args[0] {
				continue
			}
			found, shown.Users = true, append(shown.Users, *u)
			for _, t := range u.Tokens {
				expires := "never"
				if !t.Expires.IsZero() {
					expires = moment(t.Expires)
				}
				rows = append(rows, []string{t.ID, u.Name, moment(t.Created), expires})
			}
		}
		if !found {
			return fmt.Errorf("there is no user %s; 'numavisor user list' shows all", args[0])
		}
		return emit(c, shown, func(w io.Writer) {
			if len(rows) == 1 {
				fmt.Fprintln(w, "no tokens")
				return
			}
			columns(w, rows)
		})
	})
}

func tokenCreateCommand() *cobra.Command {
	var lasts time.Duration
	c := &cobra.Command{Use: "create USER", Short: "Make a token for a user; it is shown once",
		Long: `Makes a token for a user, and prints it. The server stores only a hash of it: it cannot be
shown again. Users give it as NUMAVISOR_TOKEN, or in a file that their configuration names.`,
		Args: takes(1, 1), Example: "  numavisor token create ann --expires 30d"}
	spanFlag(c.Flags(), &lasts, "expires", "time until the token expires, for example 12h or 30d (default: never)")
	return fleetCommand(c, []string{"expires"},
		func(ctx context.Context, client *fleetapi.Client, args []string) error {
			if lasts < 0 || c.Flags().Changed("expires") && lasts == 0 {
				return wrongUse("--expires %v: must be more than 0", lasts)
			}
			made, err := client.CreateToken(ctx, args[0],
				fleetapi.TokenCreate{Hours: int(math.Ceil(lasts.Hours()))})
			if err != nil {
				return err
			}
			return emit(c, made, func(w io.Writer) { printf(w, "%s\n", made.Secret) })
		})
}

func tokenRevokeCommand() *cobra.Command {
	c := &cobra.Command{Use: "revoke USER TOKEN", Short: "Revoke a token",
		Long: "Revokes a token by its ID ('numavisor token list'). The server refuses it from then on.",
		Args: takes(2, 2), Example: "  numavisor token revoke ann 7f3a9c01"}
	return fleetCommand(c, nil, func(ctx context.Context, client *fleetapi.Client, args []string) error {
		if err := client.DeleteToken(ctx, args[0], args[1]); err != nil {
			return err
		}
		return emitDone(c, "revoked", args[1])
	})
}

func tokenJoinCommand() *cobra.Command {
	var lasts time.Duration
	c := &cobra.Command{Use: "join", Short: "Make a one-time token with which a host joins",
		Long: "Makes a token with which one host joins the fleet, and prints the command to run on that host.",
		Args: takes(0, 0), Example: "  numavisor token join"}
	spanFlag(c.Flags(), &lasts, "expires", "time until the token expires, at most 7d (default: 1h)")
	return fleetCommand(c, []string{"expires"}, func(ctx context.Context, client *fleetapi.Client, _ []string) error {
		made, err := client.CreateJoin(ctx, fleetapi.JoinCreate{Minutes: int(math.Ceil(lasts.Minutes()))})
		if err != nil {
			return err
		}
		return emit(c, made, func(w io.Writer) { printf(w, "%s\n", made.Command) })
	})
}

func projectCommand() *cobra.Command {
	return fleetGroup("project", "List, set and delete the projects of a fleet and their quotas",
		"Handles the projects that own the VMs of a fleet. A quota limits what the VMs of a project\n"+
			"may have in sum.", projectListCommand(), projectSetCommand(), projectDeleteCommand())
}

func projectListCommand() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List projects with their use and quotas",
		Long: "Lists the projects of the user: what their VMs have, of what they may have.", Args: takes(0, 0),
		Example: "  numavisor project list"}
	return fleetCommand(c, nil, func(ctx context.Context, client *fleetapi.Client, _ []string) error {
		projects, err := client.Projects(ctx)
		if err != nil {
			return err
		}
		return emit(c, projects, func(w io.Writer) { printProjects(w, projects.Projects) })
	})
}

func printProjects(w io.Writer, projects []fleetapi.Project) {
	if len(projects) == 0 {
		fmt.Fprintln(w, "no projects")
		return
	}
	number := func(used, limit int) string {
		if limit == 0 {
			return fmt.Sprint(used)
		}
		return fmt.Sprintf("%d of %d", used, limit)
	}
	memory := func(used, limit topology.Bytes) string {
		if limit == 0 {
			return used.String()
		}
		return fmt.Sprintf("%v of %v", used, limit)
	}
	rows := [][]string{{"PROJECT", "VMS", "VCPUS", "EXCLUSIVE", "MEMORY", "HUGE PAGES"}}
	for i := range projects {
		p := &projects[i]
		rows = append(rows, []string{p.Name, number(p.Used.VMs, p.Quota.VMs), number(p.Used.VCPUs, p.Quota.VCPUs),
			number(p.Used.Exclusive, p.Quota.Exclusive), memory(p.Used.Memory, p.Quota.Memory),
			memory(p.Used.HugePages, p.Quota.HugePages)})
	}
	columns(w, rows)
}

func projectSetCommand() *cobra.Command {
	var q fleetapi.Quota
	var memory, huge string
	c := &cobra.Command{Use: "set PROJECT", Short: "Create a project, or change its quotas",
		Long: `Creates a project of a fleet, or changes its quotas. A quota without a flag has no limit.
VMs that exist stay if a new quota is lower than what they have.`,
		Args: takes(1, 1), Example: "  numavisor project set shop --vms 20 --max-vcpus 64 --max-memory 256G"}
	c.Flags().IntVar(&q.VMs, "max-vms", 0, "most VMs (0: no limit)")
	c.Flags().IntVar(&q.VCPUs, "max-vcpus", 0, "most vCPUs in sum (0: no limit)")
	c.Flags().IntVar(&q.Exclusive, "max-exclusive", 0, "most vCPUs with a CPU of their own (0: no limit)")
	c.Flags().StringVar(&memory, "max-memory", "", "most memory in sum, for example 256G (default: no limit)")
	c.Flags().StringVar(&huge, "max-huge-pages", "", "most memory in huge pages, for example 64G (default: no limit)")
	c.Example = "  numavisor project set shop --max-vms 20 --max-vcpus 64 --max-memory 256G"
	return fleetCommand(c, []string{"max-vms", "max-vcpus", "max-exclusive", "max-memory", "max-huge-pages"},
		func(ctx context.Context, client *fleetapi.Client, args []string) error {
			for _, f := range []struct {
				name, text string
				to         *topology.Bytes
			}{{"max-memory", memory, &q.Memory}, {"max-huge-pages", huge, &q.HugePages}} {
				size, err := sizeOf(f.text)
				if err != nil {
					return wrongUse("--%s %q: %w", f.name, f.text, err)
				}
				*f.to = size
			}
			p, err := client.PutProject(ctx, args[0], fleetapi.ProjectEdit{Quota: q})
			if err != nil {
				return err
			}
			return emit(c, p, func(w io.Writer) { printProjects(w, []fleetapi.Project{p}) })
		})
}

// sizeOf reads an amount of memory; an empty text is 0.
func sizeOf(text string) (topology.Bytes, error) {
	if text == "" {
		return 0, nil
	}
	return topology.ParseSize(text)
}

func projectDeleteCommand() *cobra.Command {
	c := &cobra.Command{Use: "delete PROJECT", Short: "Remove a project without VMs",
		Long: "Removes a project of a fleet. It must not have VMs.", Args: takes(1, 1),
		Example: "  numavisor project delete shop"}
	return fleetCommand(c, nil, func(ctx context.Context, client *fleetapi.Client, args []string) error {
		if err := client.DeleteProject(ctx, args[0]); err != nil {
			return err
		}
		return emitDone(c, "deleted", args[0])
	})
}

func auditCommand() *cobra.Command {
	var last int
	c := &cobra.Command{Use: "audit", Short: "List the changes of a fleet with who made them",
		Long: `Lists the changes of a fleet's records, the newest last: who made them, when, by
which operation and to what. -o json and -o yaml also print the records before and
after. Secrets are not in them.`,
		Args: takes(0, 0), Example: "  numavisor audit --last 20\n  numavisor audit --last 5 -o yaml"}
	c.Flags().IntVar(&last, "last", 50, "only this number of the newest entries; 0: all")
	return fleetCommand(c, []string{"last"}, func(ctx context.Context, client *fleetapi.Client, _ []string) error {
		if last < 0 {
			return wrongUse("--last %d: must not be negative", last)
		}
		all := fleetapi.Audit{Entries: []fleetapi.AuditEntry{}}
		for cursor, more := "", true; more; {
			page, err := client.Audit(ctx, cmp.Or(min(last, 1000), 1000), cursor)
			if err != nil {
				return err
			}
			all.Entries = append(all.Entries, page.Entries...)
			cursor = page.Next
			more = cursor != "" && (last == 0 || len(all.Entries) < last)
		}
		if last > 0 && len(all.Entries) > last {
			all.Entries = all.Entries[:last]
		}
		return emit(c, all, func(w io.Writer) {
			rows := [][]string{{"TIME", "USER", "OPERATION", "OBJECT"}}
			for i := range all.Entries {
				e := &all.Entries[len(all.Entries)-1-i]
				rows = append(rows, []string{moment(e.At), e.User, e.Operation, e.Object})
			}
			columns(w, rows)
		})
	})
}
